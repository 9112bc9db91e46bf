// Slot table entries: each is the commit record of one block on disk. Bytes <-> values, pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

namespace kvtier::format {

inline constexpr std::size_t kEntryBytes = 64;
inline constexpr std::uint32_t kPartsMax = 4096;

/// Codec of the payload in its slot.
enum class Codec : std::uint8_t { kRaw = 0 };

struct SlotEntry {
  BlockKey key;
  BlockKey parent;  // Zero when `is_root`.
  bool is_root = true;
  std::uint32_t namespace_index = 0;  // Into the namespace table.
  std::uint32_t length_bytes = 0;     // Payload; the rest of the slot is padding.
  std::uint64_t generation = 0;       // Rises with every write of any slot in the store.
  std::uint16_t pin_count = 0;
  Codec codec = Codec::kRaw;
  std::vector<std::uint64_t> checksums;  // One a part.
};

/// Bytes of one entry in a table of `num_parts` checksums each.
constexpr std::uint64_t slot_entry_bytes(std::uint32_t num_parts) {
  if (num_parts <= 1) return kEntryBytes;
  return (kEntryBytes + 8 * std::uint64_t{num_parts} + kEntryBytes - 1) / kEntryBytes * kEntryBytes;
}

/// Writes entry_bytes (see SegmentHeader::entry_bytes). `nullptr`: an empty entry (all zero).
void encode_slot_entry(const SlotEntry* entry, std::span<std::byte> target);

enum class SlotEntryState : std::uint8_t { kEmpty, kUsed, kDamaged };
/// kEmpty: all zero. kDamaged: its own checksum fails, unknown codec or flags, or not of
/// slot_entry_bytes(num_parts) bytes. `entry` is set for kUsed, else undefined; reused from call to
/// call it allocates nothing.
SlotEntryState decode_slot_entry(std::span<const std::byte> source, std::uint32_t num_parts,
                                 SlotEntry& entry);

}  // namespace kvtier::format
