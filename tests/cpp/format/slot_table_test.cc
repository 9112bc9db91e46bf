// Tests of slot table entry bytes. Single-threaded.
#include "format/slot_table.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "format/bit_flips.h"
#include "format/checksum_purpose.h"
#include "format/little_endian.h"

namespace kvtier::format {
namespace {

SlotEntry make_entry(std::uint32_t num_parts) {
  SlotEntry entry;
  for (std::size_t index = 0; index < 16; ++index) {
    entry.key.bytes[index] = static_cast<std::uint8_t>(index + 1);
    entry.parent.bytes[index] = static_cast<std::uint8_t>(0xf0 - index);
  }
  entry.is_root = false;
  entry.namespace_index = 0x31323334;
  entry.length_bytes = 0x41424344;
  entry.generation = 0x5152535455565758;
  entry.pin_count = 0x6162;
  for (std::uint32_t part_index = 0; part_index < num_parts; ++part_index) {
    entry.checksums.push_back(0x7172737475767778 + part_index * 0x0101010101010101u);
  }
  return entry;
}

std::vector<std::byte> encode(const SlotEntry& entry) {
  const auto num_parts = static_cast<std::uint32_t>(entry.checksums.size());
  std::vector<std::byte> bytes(slot_entry_bytes(num_parts), std::byte{0xaa});
  encode_slot_entry(&entry, bytes);
  return bytes;
}

SlotEntryState state_of(std::span<const std::byte> bytes, std::uint32_t num_parts) {
  SlotEntry entry;
  return decode_slot_entry(bytes, num_parts, entry);
}

// Makes the entry's own checksum fit again after the test changed something.
void seal(std::span<std::byte> bytes) {
  store_little_endian(bytes.data() + 60, std::uint32_t{0});
  const std::uint64_t checksum =
      checksum_metadata(bytes.first(kEntryBytes), seed_of(ChecksumPurpose::kSlotEntry));
  store_little_endian(bytes.data() + 60, static_cast<std::uint32_t>(checksum));
}

void check_round_trip(const SlotEntry& entry) {
  const auto num_parts = static_cast<std::uint32_t>(entry.checksums.size());
  CAPTURE(num_parts);
  // Left over from another entry, so that a field that decoding forgets shows.
  SlotEntry decoded = make_entry(3);
  REQUIRE(decode_slot_entry(encode(entry), num_parts, decoded) == SlotEntryState::kUsed);
  CHECK(decoded.key == entry.key);
  CHECK(decoded.parent == entry.parent);
  CHECK(decoded.is_root == entry.is_root);
  CHECK(decoded.namespace_index == entry.namespace_index);
  CHECK(decoded.length_bytes == entry.length_bytes);
  CHECK(decoded.generation == entry.generation);
  CHECK(decoded.pin_count == entry.pin_count);
  CHECK(decoded.codec == entry.codec);
  CHECK(decoded.checksums == entry.checksums);
}

TEST_CASE("a slot entry comes back as it was written") {
  for (const std::uint32_t num_parts : {1u, 2u, 7u, 8u, 9u, 16u, 504u, 505u, kPartsMax}) {
    check_round_trip(make_entry(num_parts));
  }
  SlotEntry root = make_entry(1);
  root.is_root = true;
  root.parent = {};
  check_round_trip(root);
}

TEST_CASE("slot entry fields stand where the disk format says") {
  const std::vector<std::byte> bytes = encode(make_entry(1));
  const unsigned char want[60] = {
      1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
      16,   0xf0, 0xef, 0xee, 0xed, 0xec, 0xeb, 0xea, 0xe9, 0xe8, 0xe7, 0xe6, 0xe5, 0xe4, 0xe3,
      0xe2, 0xe1, 0x78, 0x77, 0x76, 0x75, 0x74, 0x73, 0x72, 0x71, 0x58, 0x57, 0x56, 0x55, 0x54,
      0x53, 0x52, 0x51, 0x44, 0x43, 0x42, 0x41, 0x34, 0x33, 0x32, 0x31, 0x01, 0x00, 0x62, 0x61};
  CHECK(std::memcmp(bytes.data(), want, sizeof want) == 0);
}

TEST_CASE("an empty slot entry is all zero and nothing else is empty") {
  std::vector<std::byte> bytes(slot_entry_bytes(9), std::byte{0xaa});
  encode_slot_entry(nullptr, bytes);
  CHECK(is_all_zero(bytes));
  CHECK(state_of(bytes, 9) == SlotEntryState::kEmpty);
  for_each_flipped_bit(bytes, [&](std::size_t bit) {
    CAPTURE(bit);
    REQUIRE(state_of(bytes, 9) == SlotEntryState::kDamaged);
  });
}

TEST_CASE("even an entry of nothing but zero values is not empty") {
  SlotEntry entry;
  entry.checksums = {0};
  const std::vector<std::byte> bytes = encode(entry);
  CHECK(!is_all_zero(bytes));
  CHECK(state_of(bytes, 1) == SlotEntryState::kUsed);
}

TEST_CASE("any flipped bit of a slot entry is detected") {
  for (const std::uint32_t num_parts : {1u, 3u, 8u, 13u, 505u}) {
    std::vector<std::byte> bytes = encode(make_entry(num_parts));
    for_each_flipped_bit(bytes, [&](std::size_t bit) {
      CAPTURE(bit);
      REQUIRE(state_of(bytes, num_parts) == SlotEntryState::kDamaged);
    });
    CHECK(state_of(bytes, num_parts) == SlotEntryState::kUsed);
  }
}

TEST_CASE("a slot entry cut at any length or read as another number of parts is damaged") {
  for (const std::uint32_t num_parts : {1u, 13u}) {
    const std::vector<std::byte> bytes = encode(make_entry(num_parts));
    for_each_truncation(bytes, [&](std::span<const std::byte> cut) {
      REQUIRE(state_of(cut, num_parts) == SlotEntryState::kDamaged);
    });
    for (const std::uint32_t other : {0u, 2u, 5u, kPartsMax + 1, UINT32_MAX}) {
      CHECK(state_of(bytes, other) == SlotEntryState::kDamaged);
    }
  }
  // The same number of bytes, but one of the checksums would be taken for padding.
  CHECK(state_of(encode(make_entry(8)), 7) == SlotEntryState::kDamaged);
}

TEST_CASE("a torn entry, half new and half old, is damaged") {
  const std::vector<std::byte> old_bytes = encode(make_entry(9));
  SlotEntry next = make_entry(9);
  for (std::uint64_t& checksum : next.checksums) checksum += 99;
  next.generation += 1;
  const std::vector<std::byte> new_bytes = encode(next);
  // From within the first to within the last 8 bytes that differ.
  for (std::size_t cut = 33; cut <= 128; ++cut) {
    std::vector<std::byte> torn = old_bytes;
    std::memcpy(torn.data(), new_bytes.data(), cut);
    REQUIRE(state_of(torn, 9) == SlotEntryState::kDamaged);
  }
}

TEST_CASE("an entry with unknown flags or codec is damaged although its checksum fits") {
  std::vector<std::byte> bytes = encode(make_entry(1));
  for (unsigned flags = 0; flags < 0x10000; ++flags) {
    CAPTURE(flags);
    store_little_endian(bytes.data() + 56, static_cast<std::uint16_t>(flags));
    seal(bytes);
    // 3 would be a root that has a parent.
    REQUIRE(state_of(bytes, 1) == (flags == 1 ? SlotEntryState::kUsed : SlotEntryState::kDamaged));
  }
}

TEST_CASE("padding after the checksums of the parts must be zero") {
  std::vector<std::byte> bytes = encode(make_entry(9));
  bytes[64 + 72] = std::byte{1};
  const std::uint64_t parts_checksum = checksum_metadata(std::span(bytes).subspan(kEntryBytes),
                                                         seed_of(ChecksumPurpose::kSlotEntryParts));
  store_little_endian(bytes.data() + 32, parts_checksum);
  seal(bytes);
  CHECK(state_of(bytes, 9) == SlotEntryState::kDamaged);
}

TEST_CASE("a slot entry that cannot be is not written") {
  std::vector<std::byte> bytes(64);
  SlotEntry no_parts = make_entry(0);
  CHECK_THROWS_AS(encode_slot_entry(&no_parts, bytes), InternalError);
  SlotEntry too_long = make_entry(2);
  CHECK_THROWS_AS(encode_slot_entry(&too_long, bytes), InternalError);
  SlotEntry root_with_parent = make_entry(1);
  root_with_parent.is_root = true;
  CHECK_THROWS_AS(encode_slot_entry(&root_with_parent, bytes), InternalError);
}

}  // namespace
}  // namespace kvtier::format
