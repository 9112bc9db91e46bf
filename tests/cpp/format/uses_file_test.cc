// Tests of uses file bytes. Single-threaded.
#include "format/uses_file.h"

#include <doctest/doctest.h>

#include "format/bit_flips.h"
#include "format/header_page.h"
#include "format/little_endian.h"
#include "format/superblock.h"

namespace kvtier::format {
namespace {

UsesFile make_file() {
  UsesFile file;
  for (std::size_t i = 0; i < 16; ++i) file.store_id.bytes[i] = static_cast<std::uint8_t>(i + 1);
  file.generation = 0x0102030405060708;
  file.num_calls = 0x1112131415161718;
  file.blocks = {{0x21222324, 0x31323334, 0x41, 0x51}, {7, 0, 127, 255}};
  file.counts = {{0x0506, 1.5f, 0.25f}};
  file.uses = {{0x61626364, 0x7172, 0x73, 0x74}, {}, {9, 8, 7, 6}};
  return file;
}

StatusCode code_of(std::span<const std::byte> bytes) {
  return decode_uses_file(bytes).status().code();
}

void check_equal(const UsesFile& one, const UsesFile& other) {
  CHECK(one.store_id == other.store_id);
  CHECK(one.generation == other.generation);
  CHECK(one.num_calls == other.num_calls);
  CHECK(one.blocks == other.blocks);
  CHECK(one.counts == other.counts);
  CHECK(one.uses == other.uses);
}

TEST_CASE("a uses file comes back as it was written") {
  for (const UsesFile& file : {make_file(), UsesFile{}}) {
    const auto decoded = decode_uses_file(encode_uses_file(file));
    REQUIRE(decoded.is_ok());
    check_equal(decoded.value(), file);
  }
}

TEST_CASE("uses file fields stand where the disk format says") {
  const std::vector<std::byte> bytes = encode_uses_file(make_file());
  REQUIRE(bytes.size() == 4096 + 2 * 10 + 1 * 10 + 3 * 8);
  CHECK(std::memcmp(bytes.data(), "KVTIERUS\x01\0\0\0\x01\0\0\0\x01\x02\x03", 19) == 0);
  CHECK(std::memcmp(bytes.data() + 32, "\x08\x07\x06\x05\x04\x03\x02\x01\x02\0\0\0\x03\0\0\0",
                    16) == 0);
  CHECK(std::memcmp(bytes.data() + 48, "\x18\x17\x16\x15\x14\x13\x12\x11", 8) == 0);
  CHECK(is_all_zero(std::span(bytes).subspan(64, 4024)));
  CHECK(std::memcmp(bytes.data() + 4096, "\x24\x23\x22\x21\x34\x33\x32\x31\x41\x51", 10) == 0);
  CHECK(std::memcmp(bytes.data() + 4116, "\x06\x05\0\0\xc0\x3f\0\0\x80\x3e", 10) == 0);
  CHECK(std::memcmp(bytes.data() + 4126, "\x64\x63\x62\x61\x72\x71\x73\x74\0\0\0\0", 12) == 0);
}

TEST_CASE("any flipped bit of a uses file is detected") {
  std::vector<std::byte> bytes = encode_uses_file(make_file());
  for_each_flipped_bit(bytes, [&](std::size_t bit) {
    CAPTURE(bit);
    REQUIRE(code_of(bytes) == StatusCode::kCorrupt);
  });
  CHECK(decode_uses_file(bytes).is_ok());
}

TEST_CASE("a uses file of any other length is corrupt") {
  std::vector<std::byte> bytes = encode_uses_file(make_file());
  for_each_truncation(
      bytes, [](std::span<const std::byte> cut) { REQUIRE(code_of(cut) == StatusCode::kCorrupt); });
  bytes.push_back(std::byte{0});
  CHECK(code_of(bytes) == StatusCode::kCorrupt);
  CHECK(code_of(std::vector<std::byte>(kUsesFileBytesMax + 1)) == StatusCode::kCorrupt);
}

TEST_CASE("a uses file of a later version is unsupported") {
  std::vector<std::byte> bytes = encode_uses_file(make_file());
  const auto page = std::span(bytes).first(kHeaderPageBytes);
  store_little_endian(page.data() + kHeaderMagicBytes, kFormatVersion + 1);
  seal_header_page({"uses file", "KVTIERUS", ChecksumPurpose::kUsesFile}, page);
  CHECK(code_of(bytes) == StatusCode::kUnsupported);
}

TEST_CASE("what does not fit is left out: old uses, then the counts, then blocks used long ago") {
  const UsesFile whole = make_file();
  const std::uint64_t bytes = uses_file_bytes(whole);
  CHECK(bytes == encode_uses_file(whole).size());
  for (std::uint64_t bytes_max = 4096; bytes_max <= bytes; ++bytes_max) {
    CAPTURE(bytes_max);
    UsesFile file = whole;
    REQUIRE(trim_uses_file(file, bytes_max));
    REQUIRE(uses_file_bytes(file) <= bytes_max);
    if (!file.uses.empty()) CHECK(file.counts == whole.counts);
    if (!file.uses.empty()) CHECK(file.uses.back() == whole.uses.back());
    if (!file.counts.empty()) CHECK(file.blocks == whole.blocks);
    if (!file.blocks.empty()) CHECK(file.blocks.back() == whole.blocks.back());
    if (bytes_max >= 4096 + 20) CHECK(file.blocks.size() == 2);
  }
  UsesFile file = whole;
  CHECK_FALSE(trim_uses_file(file, 4095));
}

}  // namespace
}  // namespace kvtier::format
