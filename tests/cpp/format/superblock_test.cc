// Tests of superblock bytes. Single-threaded.
#include "format/superblock.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/check.h"
#include "format/bit_flips.h"
#include "format/header_page.h"
#include "format/little_endian.h"

namespace kvtier::format {
namespace {

Superblock make_superblock() {
  Superblock superblock;
  for (std::size_t index = 0; index < 16; ++index) {
    superblock.store_id.bytes[index] = static_cast<std::uint8_t>(index + 1);
  }
  superblock.sequence = 0x0102030405060708;
  superblock.is_clean = true;
  superblock.generation_max = 0x1112131415161718;
  return superblock;
}

std::vector<std::byte> encode(const Superblock& superblock) {
  // Not zero beforehand: encoding must write every byte.
  std::vector<std::byte> bytes(kSuperblockBytes, std::byte{0xaa});
  encode_superblock(superblock, bytes);
  return bytes;
}

StatusCode code_of(std::span<const std::byte> bytes) {
  return decode_superblock(bytes).status().code();
}

void check_round_trip(const Superblock& superblock) {
  const Result<Superblock> decoded = decode_superblock(encode(superblock));
  REQUIRE(decoded.is_ok());
  CHECK(decoded.value().store_id == superblock.store_id);
  CHECK(decoded.value().sequence == superblock.sequence);
  CHECK(decoded.value().is_clean == superblock.is_clean);
  CHECK(decoded.value().generation_max == superblock.generation_max);
}

TEST_CASE("a superblock comes back as it was written") {
  check_round_trip(make_superblock());
  check_round_trip(Superblock{});
  Superblock extreme = make_superblock();
  extreme.is_clean = false;
  extreme.sequence = UINT64_MAX;
  extreme.generation_max = UINT64_MAX;
  check_round_trip(extreme);
}

TEST_CASE("superblock fields stand where the disk format says") {
  const std::vector<std::byte> bytes = encode(make_superblock());
  CHECK(std::memcmp(bytes.data(), "KVTIERSB\x01\0\0\0\x01\0\0\0\x01\x02\x03", 19) == 0);
  CHECK(std::memcmp(bytes.data() + 32, "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17", 10) == 0);
  CHECK(is_all_zero(std::span(bytes).subspan(48, 4040)));
}

TEST_CASE("any flipped bit of a superblock is detected") {
  std::vector<std::byte> bytes = encode(make_superblock());
  for_each_flipped_bit(bytes, [&](std::size_t bit) {
    CAPTURE(bit);
    REQUIRE(code_of(bytes) == StatusCode::kCorrupt);
  });
  CHECK(decode_superblock(bytes).is_ok());
}

TEST_CASE("a superblock cut at any length is corrupt") {
  for_each_truncation(encode(make_superblock()), [](std::span<const std::byte> cut) {
    REQUIRE(code_of(cut) == StatusCode::kCorrupt);
  });
}

TEST_CASE("an empty, zeroed or foreign file is no superblock") {
  CHECK(code_of({}) == StatusCode::kCorrupt);
  CHECK(code_of(std::vector<std::byte>(kSuperblockBytes)) == StatusCode::kCorrupt);
  CHECK(code_of(std::vector<std::byte>(kSuperblockBytes, std::byte{0xff})) == StatusCode::kCorrupt);
}

TEST_CASE("a superblock of a later version is unsupported") {
  std::vector<std::byte> bytes = encode(make_superblock());
  store_little_endian(bytes.data() + kHeaderMagicBytes, kFormatVersion + 1);
  seal_header_page({"superblock", "KVTIERSB", ChecksumPurpose::kSuperblock}, bytes);
  CHECK(code_of(bytes) == StatusCode::kUnsupported);
}

TEST_CASE("a superblock with unknown flags is corrupt") {
  std::vector<std::byte> bytes = encode(make_superblock());
  store_little_endian(bytes.data() + kHeaderBodyOffset, std::uint32_t{3});
  seal_header_page({"superblock", "KVTIERSB", ChecksumPurpose::kSuperblock}, bytes);
  CHECK(code_of(bytes) == StatusCode::kCorrupt);
}

TEST_CASE("a superblock is not written into too little room") {
  std::vector<std::byte> bytes(kSuperblockBytes - 1);
  CHECK_THROWS_AS(encode_superblock(make_superblock(), bytes), InternalError);
}

}  // namespace
}  // namespace kvtier::format
