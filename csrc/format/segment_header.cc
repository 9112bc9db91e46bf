// Segment geometry and header bytes (tables in docs/disk_format.md). Thread-safe.
#include "format/segment_header.h"

#include <bit>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "base/check.h"
#include "format/header_page.h"
#include "format/little_endian.h"
#include "format/slot_table.h"

namespace kvtier::format {

namespace {

static_assert(kSegmentHeaderBytes == kHeaderPageBytes);
static_assert(kSegmentHeaderBytes % kTablePageBytes == 0);

constexpr HeaderKind kKind = {"segment header", "KVTIERSG", ChecksumPurpose::kSegmentHeader};

constexpr std::size_t kSegmentIdOffset = kHeaderBodyOffset;
constexpr std::size_t kStoreIdOffset = 16;
constexpr std::size_t kNumSlotsOffset = 32;
constexpr std::size_t kNumPartsOffset = 36;
constexpr std::size_t kSlotBytesOffset = 40;
constexpr std::size_t kTableOffsetOffset = 48;
constexpr std::size_t kPayloadOffsetOffset = 56;
constexpr std::size_t kBodyEndOffset = 64;

// Far beyond any device, and far from where sums of offsets wrap around.
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 62;
constexpr std::uint64_t kAlignmentBytesMax = std::uint64_t{1} << 31;

constexpr std::string_view kNamePrefix = "segment-";
constexpr std::string_view kNameSuffix = ".kvtier";

std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment_bytes) {
  return (value + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

// Entries that share one table page; at least 1.
std::uint64_t entries_per_page(std::uint64_t entry_bytes) {
  return entry_bytes >= kTablePageBytes ? 1 : kTablePageBytes / entry_bytes;
}

// Bytes from one group of entries that shares pages to the next.
std::uint64_t page_group_bytes(std::uint64_t entry_bytes) {
  return round_up(entry_bytes, kTablePageBytes);
}

bool is_payload_range_sound(const SegmentHeader& header) {
  if (header.payload_offset_bytes >= kFileBytesMax) return false;
  return header.slot_bytes <= (kFileBytesMax - header.payload_offset_bytes) / header.num_slots;
}

// True when plan_segment would have chosen this payload offset for some alignment of the slots.
bool is_payload_offset_planned(const SegmentHeader& header) {
  const std::uint64_t table_end_bytes = header.table_offset_bytes + header.table_bytes();
  if (header.payload_offset_bytes < table_end_bytes) return false;
  if (header.payload_offset_bytes % kTablePageBytes != 0) return false;
  const std::uint64_t gap_bytes = header.payload_offset_bytes - table_end_bytes;
  if (gap_bytes < kTablePageBytes) return true;
  // The least alignment that leaves such a gap; a greater one would ask for more of the values.
  if (gap_bytes >= kAlignmentBytesMax) return false;
  const std::uint64_t alignment_bytes = std::bit_ceil(gap_bytes + 1);
  return header.payload_offset_bytes % alignment_bytes == 0 &&
         header.slot_bytes % alignment_bytes == 0;
}

bool is_sound(const SegmentHeader& header) {
  // In this order: each line makes the arithmetic of the next one safe.
  if (header.num_parts < 1 || header.num_parts > kPartsMax) return false;
  if (header.num_slots < 1 || header.slot_bytes < 1) return false;
  if (header.table_offset_bytes != kSegmentHeaderBytes) return false;
  return is_payload_range_sound(header) && is_payload_offset_planned(header);
}

}  // namespace

std::uint64_t SegmentHeader::entry_bytes() const { return slot_entry_bytes(num_parts); }

std::uint64_t SegmentHeader::entry_offset_bytes(std::uint32_t slot_index) const {
  KVTIER_CHECK(slot_index < num_slots);
  const std::uint64_t per_page = entries_per_page(entry_bytes());
  return slot_index / per_page * page_group_bytes(entry_bytes()) +
         slot_index % per_page * entry_bytes();
}

std::uint64_t SegmentHeader::table_bytes() const {
  const std::uint64_t per_page = entries_per_page(entry_bytes());
  return (num_slots + per_page - 1) / per_page * page_group_bytes(entry_bytes());
}

std::uint64_t SegmentHeader::slot_offset_bytes(std::uint32_t slot_index) const {
  KVTIER_CHECK(slot_index < num_slots);
  return payload_offset_bytes + slot_index * slot_bytes;
}

std::uint64_t SegmentHeader::file_bytes() const {
  return payload_offset_bytes + num_slots * slot_bytes;
}

SegmentHeader plan_segment(const Digest128& store_id, std::uint32_t segment_id,
                           std::uint32_t num_slots, std::uint64_t slot_bytes,
                           std::uint32_t num_parts, std::uint32_t alignment_bytes) {
  KVTIER_CHECK(std::has_single_bit(alignment_bytes));
  KVTIER_CHECK(slot_bytes % alignment_bytes == 0);
  KVTIER_CHECK(num_parts >= 1);
  KVTIER_CHECK(num_parts <= kPartsMax);
  SegmentHeader header;
  header.store_id = store_id;
  header.segment_id = segment_id;
  header.num_slots = num_slots;
  header.slot_bytes = slot_bytes;
  header.num_parts = num_parts;
  header.table_offset_bytes = kSegmentHeaderBytes;
  // At least a table page, so that no write of the table reaches into a slot.
  const std::uint64_t payload_alignment_bytes =
      alignment_bytes > kTablePageBytes ? alignment_bytes : kTablePageBytes;
  header.payload_offset_bytes =
      round_up(header.table_offset_bytes + header.table_bytes(), payload_alignment_bytes);
  KVTIER_CHECK(is_sound(header));
  return header;
}

void encode_segment_header(const SegmentHeader& header, std::span<std::byte> target) {
  KVTIER_CHECK(is_sound(header));
  begin_header_page(kKind, target);
  std::byte* bytes = target.data();
  store_little_endian(bytes + kSegmentIdOffset, header.segment_id);
  store_digest(bytes + kStoreIdOffset, header.store_id);
  store_little_endian(bytes + kNumSlotsOffset, header.num_slots);
  store_little_endian(bytes + kNumPartsOffset, header.num_parts);
  store_little_endian(bytes + kSlotBytesOffset, header.slot_bytes);
  store_little_endian(bytes + kTableOffsetOffset, header.table_offset_bytes);
  store_little_endian(bytes + kPayloadOffsetOffset, header.payload_offset_bytes);
  seal_header_page(kKind, target);
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> source) {
  Status status = verify_header_page(kKind, kBodyEndOffset, source);
  if (!status.is_ok()) return status;
  const std::byte* bytes = source.data();
  SegmentHeader header;
  header.segment_id = load_little_endian<std::uint32_t>(bytes + kSegmentIdOffset);
  header.store_id = load_digest(bytes + kStoreIdOffset);
  header.num_slots = load_little_endian<std::uint32_t>(bytes + kNumSlotsOffset);
  header.num_parts = load_little_endian<std::uint32_t>(bytes + kNumPartsOffset);
  header.slot_bytes = load_little_endian<std::uint64_t>(bytes + kSlotBytesOffset);
  header.table_offset_bytes = load_little_endian<std::uint64_t>(bytes + kTableOffsetOffset);
  header.payload_offset_bytes = load_little_endian<std::uint64_t>(bytes + kPayloadOffsetOffset);
  if (!is_sound(header)) {
    return Status(StatusCode::kCorrupt,
                  "cannot read segment header: values do not fit together: segment=" +
                      std::to_string(header.segment_id) +
                      " num_slots=" + std::to_string(header.num_slots) +
                      " slot_bytes=" + std::to_string(header.slot_bytes) +
                      " num_parts=" + std::to_string(header.num_parts) +
                      " table_offset_bytes=" + std::to_string(header.table_offset_bytes) +
                      " payload_offset_bytes=" + std::to_string(header.payload_offset_bytes));
  }
  return header;
}

std::string segment_file_name(std::uint32_t segment_id) {
  char name[32];
  std::snprintf(name, sizeof name, "segment-%08" PRIu32 ".kvtier", segment_id);
  return name;
}

std::optional<std::uint32_t> parse_segment_file_name(std::string_view name) {
  if (!name.starts_with(kNamePrefix)) return std::nullopt;
  if (!name.ends_with(kNameSuffix)) return std::nullopt;
  if (name.size() <= kNamePrefix.size() + kNameSuffix.size()) return std::nullopt;
  name.remove_prefix(kNamePrefix.size());
  name.remove_suffix(kNameSuffix.size());
  std::uint32_t segment_id = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), segment_id);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  // Only the name that we would give: two names must never mean one segment.
  const std::string own_name = segment_file_name(segment_id);
  const std::string_view own_digits = std::string_view(own_name).substr(
      kNamePrefix.size(), own_name.size() - kNamePrefix.size() - kNameSuffix.size());
  if (own_digits != name) return std::nullopt;
  return segment_id;
}

}  // namespace kvtier::format
