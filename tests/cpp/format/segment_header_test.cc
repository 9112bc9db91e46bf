// Tests of segment geometry and header bytes. Single-threaded.
#include "format/segment_header.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <vector>

#include "base/check.h"
#include "format/bit_flips.h"
#include "format/header_page.h"
#include "format/little_endian.h"
#include "format/random_seed.h"
#include "format/slot_table.h"

namespace kvtier::format {
namespace {

constexpr HeaderKind kKind = {"segment header", "KVTIERSG", ChecksumPurpose::kSegmentHeader};

Digest128 make_store_id() {
  Digest128 store_id;
  for (std::size_t index = 0; index < 16; ++index) {
    store_id.bytes[index] = static_cast<std::uint8_t>(0x80 + index);
  }
  return store_id;
}

SegmentHeader make_header() { return plan_segment(make_store_id(), 7, 100, 917504, 1, 4096); }

std::vector<std::byte> encode(const SegmentHeader& header) {
  std::vector<std::byte> bytes(kSegmentHeaderBytes, std::byte{0xaa});
  encode_segment_header(header, bytes);
  return bytes;
}

StatusCode code_of(std::span<const std::byte> bytes) {
  return decode_segment_header(bytes).status().code();
}

// What a sound page with the given fields at their places would decode to.
StatusCode code_with(std::uint32_t num_slots, std::uint32_t num_parts, std::uint64_t slot_bytes,
                     std::uint64_t table_offset_bytes, std::uint64_t payload_offset_bytes) {
  std::vector<std::byte> bytes = encode(make_header());
  store_little_endian(bytes.data() + 32, num_slots);
  store_little_endian(bytes.data() + 36, num_parts);
  store_little_endian(bytes.data() + 40, slot_bytes);
  store_little_endian(bytes.data() + 48, table_offset_bytes);
  store_little_endian(bytes.data() + 56, payload_offset_bytes);
  seal_header_page(kKind, bytes);
  return code_of(bytes);
}

void check_geometry(const SegmentHeader& header, std::uint32_t alignment_bytes) {
  CAPTURE(header.num_slots);
  CAPTURE(header.slot_bytes);
  CAPTURE(header.num_parts);
  CAPTURE(alignment_bytes);
  CHECK(header.table_offset_bytes % kTablePageBytes == 0);
  CHECK(header.table_offset_bytes >= kSegmentHeaderBytes);
  CHECK(header.table_bytes() % kTablePageBytes == 0);
  CHECK(header.payload_offset_bytes % alignment_bytes == 0);
  CHECK(header.payload_offset_bytes >= header.table_offset_bytes + header.table_bytes());
  std::uint64_t previous_end_bytes = 0;
  for (std::uint32_t slot_index = 0; slot_index < std::min(header.num_slots, 300u); ++slot_index) {
    const std::uint64_t begin_bytes = header.entry_offset_bytes(slot_index);
    const std::uint64_t end_bytes = begin_bytes + header.entry_bytes();
    CHECK(begin_bytes >= previous_end_bytes);
    if (header.entry_bytes() <= kTablePageBytes) {
      CHECK(begin_bytes / kTablePageBytes == (end_bytes - 1) / kTablePageBytes);
    } else {
      CHECK(begin_bytes % kTablePageBytes == 0);
    }
    previous_end_bytes = end_bytes;
    CHECK(header.slot_offset_bytes(slot_index) % alignment_bytes == 0);
  }
  const std::uint32_t last = header.num_slots - 1;
  CHECK(header.entry_offset_bytes(last) + header.entry_bytes() <= header.table_bytes());
  CHECK(header.slot_offset_bytes(last) + header.slot_bytes == header.file_bytes());
}

TEST_CASE("a segment header comes back as it was written") {
  const SegmentHeader header = make_header();
  const Result<SegmentHeader> decoded = decode_segment_header(encode(header));
  REQUIRE(decoded.is_ok());
  CHECK(decoded.value().store_id == header.store_id);
  CHECK(decoded.value().segment_id == 7);
  CHECK(decoded.value().num_slots == 100);
  CHECK(decoded.value().slot_bytes == 917504);
  CHECK(decoded.value().num_parts == 1);
  CHECK(decoded.value().table_offset_bytes == header.table_offset_bytes);
  CHECK(decoded.value().payload_offset_bytes == header.payload_offset_bytes);
}

TEST_CASE("segment header fields stand where the disk format says") {
  const std::vector<std::byte> bytes = encode(make_header());
  CHECK(std::memcmp(bytes.data(), "KVTIERSG\x01\0\0\0\x07\0\0\0\x80\x81", 18) == 0);
  CHECK(std::memcmp(bytes.data() + 32, "\x64\0\0\0\x01\0\0\0\0\0\x0e\0\0\0\0\0\0\x10\0", 19) == 0);
  CHECK(is_all_zero(std::span(bytes).subspan(64, 4024)));
}

TEST_CASE("every planned segment is laid out without overlaps and is read back") {
  std::mt19937_64 random(announce_random_seed());
  for (int round = 0; round < 300; ++round) {
    const auto alignment_bytes = static_cast<std::uint32_t>(1u << (random() % 21));
    const auto num_slots = static_cast<std::uint32_t>(1 + random() % 5000);
    const std::uint64_t slot_bytes = (1 + random() % 300) * alignment_bytes;
    const auto num_parts =
        static_cast<std::uint32_t>(round % 2 == 0 ? 1 + random() % 16 : 1 + random() % kPartsMax);
    const SegmentHeader header =
        plan_segment(make_store_id(), 1, num_slots, slot_bytes, num_parts, alignment_bytes);
    check_geometry(header, alignment_bytes);
    CHECK(decode_segment_header(encode(header)).is_ok());
  }
}

TEST_CASE("a table entry grows by whole units of 64 bytes") {
  const auto entry_bytes_of = [](std::uint32_t num_parts) {
    return plan_segment({}, 0, 1, 4096, num_parts, 4096).entry_bytes();
  };
  CHECK(entry_bytes_of(1) == 64);
  CHECK(entry_bytes_of(2) == 128);
  CHECK(entry_bytes_of(8) == 128);
  CHECK(entry_bytes_of(9) == 192);
  CHECK(entry_bytes_of(504) == 4096);
  CHECK(entry_bytes_of(505) == 4160);
  CHECK(entry_bytes_of(kPartsMax) == 32832);
  CHECK(plan_segment({}, 0, 3, 4096, 505, 4096).table_bytes() == 3 * 8192);
  CHECK(plan_segment({}, 0, 3, 4096, 9, 4096).table_bytes() == 4096);
  CHECK(plan_segment({}, 0, 22, 4096, 9, 4096).table_bytes() == 8192);
}

TEST_CASE("any flipped bit of a segment header is detected") {
  std::vector<std::byte> bytes = encode(make_header());
  for_each_flipped_bit(bytes, [&](std::size_t bit) {
    CAPTURE(bit);
    REQUIRE(code_of(bytes) == StatusCode::kCorrupt);
  });
  CHECK(decode_segment_header(bytes).is_ok());
}

TEST_CASE("a segment header cut at any length is corrupt") {
  for_each_truncation(encode(make_header()), [](std::span<const std::byte> cut) {
    REQUIRE(code_of(cut) == StatusCode::kCorrupt);
  });
}

TEST_CASE("a segment header of a later version is unsupported") {
  std::vector<std::byte> bytes = encode(make_header());
  store_little_endian(bytes.data() + kHeaderMagicBytes, std::uint32_t{2});
  seal_header_page(kKind, bytes);
  CHECK(code_of(bytes) == StatusCode::kUnsupported);
}

TEST_CASE("values that do not fit together are corrupt although their checksum fits") {
  constexpr std::uint64_t kPayload = 4096 + 8192;  // 100 entries of 64 bytes take two pages.
  REQUIRE(code_with(100, 1, 917504, 4096, kPayload) == StatusCode::kOk);
  const StatusCode corrupt = StatusCode::kCorrupt;
  CHECK(code_with(0, 1, 917504, 4096, kPayload) == corrupt);
  CHECK(code_with(100, 0, 917504, 4096, kPayload) == corrupt);
  CHECK(code_with(100, kPartsMax + 1, 917504, 4096, kPayload) == corrupt);
  CHECK(code_with(100, UINT32_MAX, 917504, 4096, kPayload) == corrupt);
  CHECK(code_with(100, 1, 0, 4096, kPayload) == corrupt);
  CHECK(code_with(100, 1, UINT64_MAX, 4096, kPayload) == corrupt);
  CHECK(code_with(100, 1, (std::uint64_t{1} << 62) / 100 + 1, 4096, kPayload) == corrupt);
  CHECK(code_with(100, 1, 917504, 0, kPayload) == corrupt);
  CHECK(code_with(100, 1, 917504, 8192, kPayload) == corrupt);
  CHECK(code_with(100, 1, 917504, UINT64_MAX, kPayload) == corrupt);
  CHECK(code_with(100, 1, 917504, 4096, kPayload - 4096) == corrupt);
  CHECK(code_with(100, 1, 917504, 4096, kPayload + 1) == corrupt);
  CHECK(code_with(100, 1, 917504, 4096, UINT64_MAX) == corrupt);
  CHECK(code_with(100, 1, 917504, 4096, std::uint64_t{1} << 62) == corrupt);
  // A gap that no alignment of slots explains: of 12 KiB, and of 4 KiB with slots of odd size.
  CHECK(code_with(100, 1, 917504, 4096, kPayload + 12288) == corrupt);
  CHECK(code_with(100, 1, 917504 + 512, 4096, kPayload + 4096) == corrupt);
  CHECK(code_with(UINT32_MAX, 1, 1, 4096, kPayload) == corrupt);
  CHECK(code_with(UINT32_MAX, kPartsMax, UINT64_MAX / UINT32_MAX, 4096, kPayload) == corrupt);
}

TEST_CASE("a segment that cannot be is not planned or written") {
  CHECK_THROWS_AS((void)plan_segment({}, 0, 0, 4096, 1, 4096), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, 1, 0, 1, 4096), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, 1, 4096, 0, 4096), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, 1, 4096, kPartsMax + 1, 4096), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, 1, 4096, 1, 4095), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, 1, 4096, 1, 0), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, 1, 4096 + 512, 1, 4096), InternalError);
  CHECK_THROWS_AS((void)plan_segment({}, 0, UINT32_MAX, std::uint64_t{1} << 40, 1, 4096),
                  InternalError);
  SegmentHeader header = make_header();
  header.payload_offset_bytes = 4096;
  std::vector<std::byte> bytes(kSegmentHeaderBytes);
  CHECK_THROWS_AS(encode_segment_header(header, bytes), InternalError);
  CHECK_THROWS_AS((void)make_header().entry_offset_bytes(100), InternalError);
  CHECK_THROWS_AS((void)make_header().slot_offset_bytes(100), InternalError);
}

TEST_CASE("a segment file name names one segment and only that") {
  CHECK(segment_file_name(7) == "segment-00000007.kvtier");
  for (const std::uint32_t segment_id : {0u, 7u, 99999999u, 100000000u, UINT32_MAX}) {
    CHECK(parse_segment_file_name(segment_file_name(segment_id)) == segment_id);
  }
  for (const char* name :
       {"", "segment-", "segment-.kvtier", "segment-7.kvtier", "segment-000000007.kvtier",
        "segment-0000000a.kvtier", "segment-00000007.kvtier~", "segment-00000007.kvtier.tmp",
        "segment--0000007.kvtier", "segment-+0000007.kvtier", "Segment-00000007.kvtier",
        "segment-4294967296.kvtier", "segment-99999999999999999999.kvtier", "segment-00000007",
        "x/segment-00000007.kvtier", "segment- 0000007.kvtier", "kvtier.superblock"}) {
    CAPTURE(name);
    CHECK(!parse_segment_file_name(name).has_value());
  }
}

}  // namespace
}  // namespace kvtier::format
