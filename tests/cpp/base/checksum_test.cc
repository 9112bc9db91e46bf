// Tests of the block checksum: its definition, its code paths, what it notices. Single-threaded.
#include "base/checksum.h"

#include <doctest/doctest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checksum_kernels.h"
#include "format/random_seed.h"

namespace kvtier {
namespace {

std::vector<std::byte> make_payload(std::size_t num_bytes, std::uint64_t salt = 1) {
  std::vector<std::byte> payload(num_bytes);
  for (std::size_t index = 0; index < num_bytes; ++index) {
    const std::uint64_t mixed = (index + salt * 1000003) * 0x9e3779b97f4a7c15u;
    payload[index] = static_cast<std::byte>(mixed >> 56);
  }
  return payload;
}

ChecksumSeed make_seed() {
  ChecksumSeed seed;
  for (std::size_t index = 0; index < 16; ++index) {
    seed.key.bytes[index] = static_cast<std::uint8_t>(index * 7 + 1);
    seed.namespace_id.bytes[index] = static_cast<std::uint8_t>(200 - index * 3);
  }
  seed.part_index = 0x01020304;
  return seed;
}

void append_number(std::vector<unsigned char>& target, std::uint64_t value, std::size_t num_bytes) {
  for (std::size_t index = 0; index < num_bytes; ++index) {
    target.push_back(static_cast<unsigned char>(value >> (8 * index)));
  }
}

std::vector<unsigned char> make_tail(std::size_t num_bytes, const ChecksumSeed& seed) {
  std::vector<unsigned char> tail;
  append_number(tail, num_bytes, 8);
  tail.insert(tail.end(), seed.key.bytes.begin(), seed.key.bytes.end());
  tail.insert(tail.end(), seed.namespace_id.bytes.begin(), seed.namespace_id.bytes.end());
  append_number(tail, seed.part_index, 4);
  return tail;
}

// The definition in checksum.h, word for word and without haste.
std::uint64_t reference_checksum(std::span<const std::byte> data, const ChecksumSeed& seed) {
  std::vector<unsigned char> root;
  for (std::size_t offset = 0; offset < data.size(); offset += kLeafBytes) {
    std::vector<unsigned char> leaf(kLeafBytes, 0);
    std::memcpy(leaf.data(), data.data() + offset, std::min(kLeafBytes, data.size() - offset));
    append_number(root, XXH3_64bits(leaf.data(), leaf.size()), 8);
  }
  const std::vector<unsigned char> tail = make_tail(data.size(), seed);
  root.insert(root.end(), tail.begin(), tail.end());
  return XXH3_64bits(root.data(), root.size());
}

std::vector<const ChecksumKernels*> paths_of_this_machine() {
  const ChecksumKernels* paths[kChecksumPathsMax];
  const std::size_t num_paths = list_checksum_kernels(paths);
  return {paths, paths + num_paths};
}

void check_all_paths(std::size_t num_bytes, std::size_t shift) {
  CAPTURE(num_bytes);
  CAPTURE(shift);
  // The shift starts source and target at addresses of no particular alignment.
  const std::vector<std::byte> buffer = make_payload(num_bytes + shift);
  const std::span<const std::byte> source = std::span(buffer).subspan(shift);
  const ChecksumSeed seed = make_seed();
  const std::uint64_t want = reference_checksum(source, seed);
  CHECK(checksum_part(source, seed) == want);
  const std::vector<unsigned char> tail = make_tail(num_bytes, seed);
  const auto* raw = reinterpret_cast<const unsigned char*>(source.data());
  for (const ChecksumKernels* path : paths_of_this_machine()) {
    CAPTURE(std::string(path->name));
    CHECK(path->checksum_part(raw, num_bytes, tail.data()) == want);
    std::vector<std::byte> target(num_bytes + 2 * shift + 2, std::byte{0xee});
    std::byte* target_begin = target.data() + 1 + shift;
    CHECK(path->copy_and_checksum_part(reinterpret_cast<unsigned char*>(target_begin), raw,
                                       num_bytes, tail.data()) == want);
    CHECK((num_bytes == 0 || std::memcmp(target_begin, source.data(), num_bytes) == 0));
    CHECK(target_begin[-1] == std::byte{0xee});
    CHECK(target_begin[num_bytes] == std::byte{0xee});
    CHECK(path->checksum_metadata(raw, num_bytes, 77) == XXH3_64bits_withSeed(raw, num_bytes, 77));
  }
}

TEST_CASE("every code path gives the defined value for every length") {
  std::mt19937_64 random(announce_random_seed());
  for (std::size_t num_bytes = 0; num_bytes <= 300; ++num_bytes) check_all_paths(num_bytes, 0);
  for (std::size_t leaves = 1; leaves <= 4; ++leaves) {
    for (std::size_t near = 0; near < 5; ++near) check_all_paths(leaves * kLeafBytes + near - 2, 3);
  }
  for (int round = 0; round < 200; ++round) check_all_paths(random() % 20001, random() % 64);
}

TEST_CASE("every code path gives the defined value around the batch of 512 leaves and far beyond") {
  const std::size_t batch_bytes = 512 * kLeafBytes;
  for (const std::size_t num_bytes :
       {batch_bytes - 1, batch_bytes, batch_bytes + 1, batch_bytes + kLeafBytes, 2 * batch_bytes,
        2 * batch_bytes + 12345, 5 * batch_bytes - 17}) {
    check_all_paths(num_bytes, 0);
    check_all_paths(num_bytes, 5);
  }
}

TEST_CASE("checksums stay what they were when the disk format was fixed") {
  // A change here makes every store on disk unreadable: it needs a new format version.
  const ChecksumSeed seed = make_seed();
  CHECK(checksum_part({}, seed) == 0x234006823fb62df8u);
  CHECK(checksum_part(make_payload(1), seed) == 0x895870a79edd20f7u);
  CHECK(checksum_part(make_payload(4096), seed) == 0x51c0e6d18f1a2906u);
  CHECK(checksum_part(make_payload(10000), seed) == 0xb33dd8988a7aa2b2u);
  CHECK(checksum_part(make_payload(3'000'000), seed) == 0xe4d9c08c66b89eb8u);
  CHECK(checksum_metadata(make_payload(64), 5) == 0xd694923cedbebed1u);
}

TEST_CASE("a flipped bit anywhere changes the checksum") {
  const ChecksumSeed seed = make_seed();
  for (const std::size_t num_bytes : {std::size_t{700}, 2 * kLeafBytes + 808}) {
    std::vector<std::byte> payload = make_payload(num_bytes);
    const std::uint64_t sound = checksum_part(payload, seed);
    const std::size_t step = num_bytes == 700 ? 1 : 7;
    for (std::size_t bit = 0; bit < num_bytes * 8; bit += step) {
      payload[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      REQUIRE(checksum_part(payload, seed) != sound);
      payload[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    CHECK(checksum_part(payload, seed) == sound);
  }
}

TEST_CASE("swapped leaves change the checksum") {
  const ChecksumSeed seed = make_seed();
  std::vector<std::byte> payload = make_payload(600 * kLeafBytes);
  const std::uint64_t sound = checksum_part(payload, seed);
  const auto swap_leaves = [&](std::size_t first, std::size_t second) {
    std::swap_ranges(payload.begin() + static_cast<std::ptrdiff_t>(first * kLeafBytes),
                     payload.begin() + static_cast<std::ptrdiff_t>((first + 1) * kLeafBytes),
                     payload.begin() + static_cast<std::ptrdiff_t>(second * kLeafBytes));
  };
  for (const auto& [first, second] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {0, 599}, {511, 512}, {100, 101}, {30, 542}}) {
    swap_leaves(first, second);
    CHECK(checksum_part(payload, seed) != sound);
    swap_leaves(first, second);
  }
  CHECK(checksum_part(payload, seed) == sound);
}

TEST_CASE("another identity or length changes the checksum of the same bytes") {
  const std::vector<std::byte> payload = make_payload(5000);
  std::set<std::uint64_t> values{checksum_part(payload, make_seed())};
  std::size_t num_values = 1;
  const auto expect_new = [&](const ChecksumSeed& seed) {
    values.insert(checksum_part(payload, seed));
    ++num_values;
  };
  for (std::size_t bit = 0; bit < 128; ++bit) {
    ChecksumSeed other_key = make_seed();
    other_key.key.bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    expect_new(other_key);
    ChecksumSeed other_namespace = make_seed();
    other_namespace.namespace_id.bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    expect_new(other_namespace);
  }
  for (std::uint32_t part_index = 0; part_index < 100; ++part_index) {
    ChecksumSeed other_part = make_seed();
    other_part.part_index = part_index;
    expect_new(other_part);
  }
  CHECK(values.size() == num_values);
}

TEST_CASE("zero bytes at the end are not taken for padding") {
  std::vector<std::byte> payload;
  std::set<std::uint64_t> values;
  for (std::size_t num_bytes = 0; num_bytes <= kLeafBytes + 1; ++num_bytes) {
    payload.resize(num_bytes);
    values.insert(checksum_part(payload, make_seed()));
  }
  CHECK(values.size() == kLeafBytes + 2);
}

TEST_CASE("metadata checksums of different purposes differ") {
  const std::vector<std::byte> payload = make_payload(64);
  CHECK(checksum_metadata(payload, 1) != checksum_metadata(payload, 2));
}

TEST_CASE("a copy between unequal lengths is refused") {
  const std::vector<std::byte> source = make_payload(10);
  std::vector<std::byte> target(9);
  CHECK_THROWS_AS((void)copy_and_checksum_part(target, source, make_seed()), InternalError);
}

TEST_CASE("a copy gives the checksum and the bytes of its source") {
  const std::vector<std::byte> source = make_payload(70001);
  std::vector<std::byte> target(source.size());
  CHECK(copy_and_checksum_part(target, source, make_seed()) == checksum_part(source, make_seed()));
  CHECK(target == source);
}

#if defined(__x86_64__)

// Whether the processor can tell which parts of its vector registers are in use.
bool can_ask_for_register_state() {
  std::uint32_t eax = 0xd, ebx = 0, ecx = 1, edx = 0;
  asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return __builtin_cpu_supports("avx") && (eax & 4) != 0;
}

// True when an upper half of a vector register, or a quarter above it, is not zero.
bool has_dirty_registers() {
  std::uint32_t eax = 0, edx = 0;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(1));
  return (eax & (1u << 2 | 1u << 6)) != 0;
}

TEST_CASE("wide code paths leave the vector registers clean for everybody else") {
  if (!can_ask_for_register_state()) {
    MESSAGE("skipped: this processor does not tell");
    return;
  }
  const std::vector<std::byte> source = make_payload(3'000'000);
  const auto* raw = reinterpret_cast<const unsigned char*>(source.data());
  std::vector<unsigned char> target(source.size());
  const std::vector<unsigned char> tail = make_tail(source.size(), make_seed());
  for (const ChecksumKernels* path : paths_of_this_machine()) {
    CAPTURE(std::string(path->name));
    for (const std::size_t num_bytes : {std::size_t{64}, kLeafBytes, source.size()}) {
      path->checksum_part(raw, num_bytes, tail.data());
      const bool is_dirty_after_hash = has_dirty_registers();
      path->copy_and_checksum_part(target.data(), raw, num_bytes, tail.data());
      const bool is_dirty_after_copy = has_dirty_registers();
      path->checksum_metadata(raw, num_bytes, 1);
      const bool is_dirty_after_metadata = has_dirty_registers();
      CHECK(!is_dirty_after_hash);
      CHECK(!is_dirty_after_copy);
      CHECK(!is_dirty_after_metadata);
    }
  }
  // The canary: the question does find a dirty register.
  asm volatile(
      "vpcmpeqd %%xmm7, %%xmm7, %%xmm7\n\t"
      "vinsertf128 $1, %%xmm7, %%ymm7, %%ymm7" ::
          : "xmm7");
  const bool is_canary_seen = has_dirty_registers();
  asm volatile("vzeroupper" ::: "memory");
  CHECK(is_canary_seen);
}

#endif

TEST_CASE("the path in use is the first of those that run here") {
  const auto paths = paths_of_this_machine();
  REQUIRE(!paths.empty());
  CHECK(std::string(checksum_path_name()) == paths.front()->name);
  CHECK(paths.back() == baseline_checksum_kernels());
}

}  // namespace
}  // namespace kvtier
