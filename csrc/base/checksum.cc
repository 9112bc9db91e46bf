// Chooses the checksum path once and lays out the root's tail. Thread-safe.
#include "base/checksum.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/checksum_kernels.h"
#include "base/leaf_copy.h"

namespace kvtier {

static_assert(kLeafBytes == kKernelLeafBytes);
static_assert(kRootTailBytes == sizeof(std::uint64_t) + sizeof(BlockKey) + sizeof(NamespaceId) +
                                    sizeof(std::uint32_t));

namespace {

const ChecksumKernels& kernels_in_use() {
  static const ChecksumKernels* const kernels = [] {
    const ChecksumKernels* paths[kChecksumPathsMax] = {};
    list_checksum_kernels(paths);
    return paths[0];
  }();
  return *kernels;
}

template <typename Integer>
void store_little_endian(unsigned char* target, Integer value) {
  for (std::size_t byte_index = 0; byte_index < sizeof value; ++byte_index) {
    target[byte_index] = static_cast<unsigned char>(value >> (8 * byte_index));
  }
}

// Values that lie there as bytes, the lowest first.
void read_little_endian(std::span<std::uint64_t> values) {
  for (std::uint64_t& stored : values) {
    const auto* place = reinterpret_cast<const unsigned char*>(&stored);
    std::uint64_t value = 0;
    for (std::size_t byte_index = 0; byte_index < sizeof value; ++byte_index) {
      value |= std::uint64_t{place[byte_index]} << (8 * byte_index);
    }
    stored = value;
  }
}

void fill_root_tail(std::uint64_t num_bytes, const ChecksumSeed& seed, unsigned char* tail) {
  store_little_endian(tail, num_bytes);
  std::memcpy(tail + 8, seed.key.bytes.data(), 16);
  std::memcpy(tail + 24, seed.namespace_id.bytes.data(), 16);
  store_little_endian(tail + 40, seed.part_index);
}

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

std::uint64_t checksum_part(std::span<const std::byte> data, const ChecksumSeed& seed) {
  unsigned char tail[kRootTailBytes];
  fill_root_tail(data.size(), seed, tail);
  return kernels_in_use().checksum_part(raw(data.data()), data.size(), tail);
}

std::uint64_t copy_and_checksum_part(std::span<std::byte> target, std::span<const std::byte> source,
                                     const ChecksumSeed& seed) {
  KVTIER_CHECK(target.size() == source.size());
  unsigned char tail[kRootTailBytes];
  fill_root_tail(source.size(), seed, tail);
  return kernels_in_use().copy_and_checksum_part(reinterpret_cast<unsigned char*>(target.data()),
                                                 raw(source.data()), source.size(), tail);
}

void digest_leaves(std::span<const std::byte> data, std::span<std::uint64_t> digests) {
  KVTIER_CHECK(digests.size() == num_leaves_of(data.size()));
  auto* bytes = reinterpret_cast<unsigned char*>(digests.data());
  kernels_in_use().digest_leaves(raw(data.data()), data.size(), bytes);
  read_little_endian(digests);
}

void copy_and_digest_leaves(std::span<std::byte> target, std::span<const std::byte> source,
                            std::span<std::uint64_t> digests) {
  KVTIER_CHECK(target.size() == source.size());
  KVTIER_CHECK(digests.size() == num_leaves_of(source.size()));
  kernels_in_use().copy_and_digest_leaves(reinterpret_cast<unsigned char*>(target.data()),
                                          raw(source.data()), source.size(),
                                          reinterpret_cast<unsigned char*>(digests.data()));
  read_little_endian(digests);
}

std::uint64_t checksum_digests(std::span<const std::uint64_t> digests, std::uint64_t length_bytes,
                               const ChecksumSeed& seed) {
  KVTIER_CHECK(digests.size() == num_leaves_of(length_bytes));
  std::vector<unsigned char> root(digests.size_bytes() + kRootTailBytes);
  unsigned char* place = root.data();
  for (const std::uint64_t digest : digests) {
    store_little_endian(place, digest);
    place += sizeof digest;
  }
  fill_root_tail(length_bytes, seed, place);
  // A hash with seed 0 is the hash without a seed, which the root is.
  return kernels_in_use().checksum_metadata(root.data(), root.size(), 0);
}

void copy_bytes(std::span<std::byte> target, std::span<const std::byte> source) {
  KVTIER_CHECK(target.size() == source.size());
  kernels_in_use().copy(reinterpret_cast<unsigned char*>(target.data()), raw(source.data()),
                        source.size());
}

std::uint64_t checksum_metadata(std::span<const std::byte> data, std::uint64_t purpose) {
  return kernels_in_use().checksum_metadata(raw(data.data()), data.size(), purpose);
}

const char* checksum_path_name() { return kernels_in_use().name; }

std::size_t list_checksum_kernels(const ChecksumKernels** target) {
  std::size_t num_paths = 0;
  [[maybe_unused]] const auto add = [&](const ChecksumKernels* kernels) {
    if (kernels != nullptr) target[num_paths++] = kernels;
  };
#if defined(__x86_64__)
  // These also ask whether the operating system saves the wide registers.
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) add(avx512_checksum_kernels());
  if (has_avx2) add(avx2_checksum_kernels());
#endif
  add(baseline_checksum_kernels());
  return num_paths;
}

}  // namespace kvtier
