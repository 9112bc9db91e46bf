// Slot table entry bytes (table in docs/disk_format.md). Thread-safe.
#include "format/slot_table.h"

#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "format/checksum_purpose.h"
#include "format/little_endian.h"

namespace kvtier::format {

namespace {

constexpr std::size_t kKeyOffset = 0;
constexpr std::size_t kParentOffset = 16;
constexpr std::size_t kChecksumOffset = 32;  // Of the part; of the list when there are several.
constexpr std::size_t kGenerationOffset = 40;
constexpr std::size_t kLengthOffset = 48;
constexpr std::size_t kNamespaceOffset = 52;
constexpr std::size_t kFlagsOffset = 56;
constexpr std::size_t kPinCountOffset = 58;
constexpr std::size_t kEntryChecksumOffset = 60;
static_assert(kEntryChecksumOffset + 4 == kEntryBytes);

constexpr std::uint16_t kUsedFlag = 1 << 0;
constexpr std::uint16_t kRootFlag = 1 << 1;
constexpr unsigned kCodecShift = 4;
constexpr std::uint16_t kCodecMask = 0xf << kCodecShift;

// Over the first 64 bytes with the place of the result as zero. Those of several parts hold the
// checksum of what follows them, so that this one vouches for every byte without reading it again.
std::uint32_t checksum_of_entry(const std::byte* entry) {
  std::byte head[kEntryBytes];
  std::memcpy(head, entry, kEntryBytes);
  store_little_endian(head + kEntryChecksumOffset, std::uint32_t{0});
  return static_cast<std::uint32_t>(checksum_metadata(head, seed_of(ChecksumPurpose::kSlotEntry)) &
                                    0xffffffffu);
}

std::uint64_t checksum_of_parts(std::span<const std::byte> parts) {
  return checksum_metadata(parts, seed_of(ChecksumPurpose::kSlotEntryParts));
}

bool is_empty(std::span<const std::byte> source) {
  // A used entry has its flag in the first 64 bytes, so the long rest is only looked at when these
  // are zero.
  std::uint64_t words[kEntryBytes / 8];
  std::memcpy(words, source.data(), kEntryBytes);
  std::uint64_t any = 0;
  for (const std::uint64_t word : words) any |= word;
  return any == 0 && is_all_zero(source.subspan(kEntryBytes));
}

bool decode_parts(std::span<const std::byte> source, std::uint32_t num_parts, SlotEntry& entry) {
  const auto checksum = load_little_endian<std::uint64_t>(source.data() + kChecksumOffset);
  entry.checksums.resize(num_parts);
  if (num_parts == 1) {
    entry.checksums[0] = checksum;
    return true;
  }
  const auto parts = source.subspan(kEntryBytes);
  if (checksum_of_parts(parts) != checksum) return false;
  for (std::uint32_t part_index = 0; part_index < num_parts; ++part_index) {
    entry.checksums[part_index] = load_little_endian<std::uint64_t>(parts.data() + 8 * part_index);
  }
  return is_all_zero(parts.subspan(8 * std::size_t{num_parts}));
}

}  // namespace

void encode_slot_entry(const SlotEntry* entry, std::span<std::byte> target) {
  std::memset(target.data(), 0, target.size());
  if (entry == nullptr) return;
  const auto num_parts = static_cast<std::uint32_t>(entry->checksums.size());
  KVTIER_CHECK(!entry->checksums.empty());
  KVTIER_CHECK(entry->checksums.size() <= kPartsMax);
  KVTIER_CHECK(target.size() == slot_entry_bytes(num_parts));
  KVTIER_CHECK(!entry->is_root || entry->parent.is_zero());
  std::byte* bytes = target.data();
  std::uint64_t checksum = entry->checksums[0];
  if (num_parts > 1) {
    for (std::uint32_t part_index = 0; part_index < num_parts; ++part_index) {
      store_little_endian(bytes + kEntryBytes + 8 * part_index, entry->checksums[part_index]);
    }
    checksum = checksum_of_parts(target.subspan(kEntryBytes));
  }
  const unsigned flags = kUsedFlag | (entry->is_root ? kRootFlag : 0u) |
                         (static_cast<unsigned>(entry->codec) << kCodecShift);
  store_digest(bytes + kKeyOffset, entry->key);
  store_digest(bytes + kParentOffset, entry->parent);
  store_little_endian(bytes + kChecksumOffset, checksum);
  store_little_endian(bytes + kGenerationOffset, entry->generation);
  store_little_endian(bytes + kLengthOffset, entry->length_bytes);
  store_little_endian(bytes + kNamespaceOffset, entry->namespace_index);
  store_little_endian(bytes + kFlagsOffset, static_cast<std::uint16_t>(flags));
  store_little_endian(bytes + kPinCountOffset, entry->pin_count);
  store_little_endian(bytes + kEntryChecksumOffset, checksum_of_entry(bytes));
}

SlotEntryState decode_slot_entry(std::span<const std::byte> source, std::uint32_t num_parts,
                                 SlotEntry& entry) {
  if (num_parts < 1 || num_parts > kPartsMax) return SlotEntryState::kDamaged;
  if (source.size() != slot_entry_bytes(num_parts)) return SlotEntryState::kDamaged;
  if (is_empty(source)) return SlotEntryState::kEmpty;
  const std::byte* bytes = source.data();
  if (load_little_endian<std::uint32_t>(bytes + kEntryChecksumOffset) != checksum_of_entry(bytes)) {
    return SlotEntryState::kDamaged;
  }
  const auto flags = load_little_endian<std::uint16_t>(bytes + kFlagsOffset);
  if ((flags & kUsedFlag) == 0) return SlotEntryState::kDamaged;
  if ((flags & ~(kUsedFlag | kRootFlag | kCodecMask)) != 0) return SlotEntryState::kDamaged;
  if ((flags & kCodecMask) != static_cast<unsigned>(Codec::kRaw) << kCodecShift) {
    return SlotEntryState::kDamaged;
  }
  entry.key = load_digest(bytes + kKeyOffset);
  entry.parent = load_digest(bytes + kParentOffset);
  entry.is_root = (flags & kRootFlag) != 0;
  if (entry.is_root && !entry.parent.is_zero()) return SlotEntryState::kDamaged;
  entry.namespace_index = load_little_endian<std::uint32_t>(bytes + kNamespaceOffset);
  entry.length_bytes = load_little_endian<std::uint32_t>(bytes + kLengthOffset);
  entry.generation = load_little_endian<std::uint64_t>(bytes + kGenerationOffset);
  entry.pin_count = load_little_endian<std::uint16_t>(bytes + kPinCountOffset);
  entry.codec = Codec::kRaw;
  return decode_parts(source, num_parts, entry) ? SlotEntryState::kUsed : SlotEntryState::kDamaged;
}

}  // namespace kvtier::format
