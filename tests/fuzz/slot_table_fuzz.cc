// Fuzz target: two bytes as a number of parts, the rest as a slot entry of so many; what decodes
// must encode to the same bytes. To let the fuzzer past the checksums, entries are also tried with
// the right ones put in. Single-threaded.
#include "format/slot_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "format/checksum_purpose.h"
#include "format/little_endian.h"

namespace {

using namespace kvtier::format;

constexpr std::size_t kPartsChecksumOffset = 32;
constexpr std::size_t kEntryChecksumOffset = 60;

void try_entry(std::span<const std::byte> source, std::uint32_t num_parts) {
  SlotEntry entry;
  const SlotEntryState state = decode_slot_entry(source, num_parts, entry);
  if (state == SlotEntryState::kDamaged) return;
  std::vector<std::byte> target(source.size(), std::byte{0xaa});
  encode_slot_entry(state == SlotEntryState::kUsed ? &entry : nullptr, target);
  KVTIER_CHECK(std::equal(source.begin(), source.end(), target.begin(), target.end()));
}

void seal_entry(std::span<std::byte> bytes) {
  if (bytes.size() > kEntryBytes) {
    store_little_endian(bytes.data() + kPartsChecksumOffset,
                        kvtier::checksum_metadata(bytes.subspan(kEntryBytes),
                                                  seed_of(ChecksumPurpose::kSlotEntryParts)));
  }
  store_little_endian(bytes.data() + kEntryChecksumOffset, std::uint32_t{0});
  const std::uint64_t checksum =
      kvtier::checksum_metadata(bytes.first(kEntryBytes), seed_of(ChecksumPurpose::kSlotEntry));
  store_little_endian(bytes.data() + kEntryChecksumOffset, static_cast<std::uint32_t>(checksum));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t data_bytes) {
  if (data_bytes < 2) return 0;
  const std::uint32_t num_parts = data[0] | std::uint32_t{data[1]} << 8;
  const std::span<const std::byte> source = std::as_bytes(std::span(data + 2, data_bytes - 2));
  try_entry(source, num_parts);
  if (source.size() < kEntryBytes) return 0;
  std::vector<std::byte> sealed(source.begin(), source.end());
  seal_entry(sealed);
  try_entry(sealed, num_parts);
  return 0;
}
