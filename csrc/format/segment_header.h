// Segment file layout: header page, slot table, payload slots. Bytes <-> values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/status.h"

namespace kvtier::format {

inline constexpr std::size_t kSegmentHeaderBytes = 4096;
/// Slot tables are written in pages of this size (and aligned to it).
inline constexpr std::size_t kTablePageBytes = 4096;

struct SegmentHeader {
  Digest128 store_id;
  std::uint32_t segment_id = 0;
  std::uint32_t num_slots = 0;
  std::uint64_t slot_bytes = 0;            // Distance of two slots.
  std::uint32_t num_parts = 1;             // Checksums in each table entry.
  std::uint64_t table_offset_bytes = 0;    // From the start of the file.
  std::uint64_t payload_offset_bytes = 0;  // Aligned like the slots.

  std::uint64_t entry_bytes() const;  // 64, or 64 + 8 * num_parts rounded up to 64 when > 1 part.
  /// Entries never straddle a table page; entries larger than a page take whole pages each.
  std::uint64_t entry_offset_bytes(std::uint32_t slot_index) const;  // From table_offset_bytes.
  std::uint64_t table_bytes() const;                                 // Whole pages.
  std::uint64_t slot_offset_bytes(std::uint32_t slot_index) const;   // From the start of the file.
  std::uint64_t file_bytes() const;
};

/// Fills in the two offsets for a segment whose slots are aligned to `alignment_bytes` (power of
/// two).
SegmentHeader plan_segment(const Digest128& store_id, std::uint32_t segment_id,
                           std::uint32_t num_slots, std::uint64_t slot_bytes,
                           std::uint32_t num_parts, std::uint32_t alignment_bytes);

void encode_segment_header(const SegmentHeader& header, std::span<std::byte> target);
/// kUnsupported: sound but of another version. kCorrupt: not a header, damaged, or values that do
/// not fit together (overlaps, overflow, beyond limits).
Result<SegmentHeader> decode_segment_header(std::span<const std::byte> source);

/// "segment-00000007.kvtier"
std::string segment_file_name(std::uint32_t segment_id);
std::optional<std::uint32_t> parse_segment_file_name(std::string_view name);

}  // namespace kvtier::format
