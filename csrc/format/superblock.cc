// Superblock bytes (table in docs/disk_format.md). Thread-safe.
#include "format/superblock.h"

#include "base/check.h"
#include "format/header_page.h"
#include "format/little_endian.h"

namespace kvtier::format {

namespace {

static_assert(kSuperblockBytes == kHeaderPageBytes);

constexpr HeaderKind kKind = {"superblock", "KVTIERSB", ChecksumPurpose::kSuperblock};

constexpr std::size_t kFlagsOffset = kHeaderBodyOffset;
constexpr std::size_t kStoreIdOffset = 16;
constexpr std::size_t kSequenceOffset = 32;
constexpr std::size_t kGenerationMaxOffset = 40;
constexpr std::size_t kBodyEndOffset = 48;

constexpr std::uint32_t kCleanFlag = 1;

}  // namespace

void encode_superblock(const Superblock& superblock, std::span<std::byte> target) {
  begin_header_page(kKind, target);
  std::byte* bytes = target.data();
  store_little_endian(bytes + kFlagsOffset, superblock.is_clean ? kCleanFlag : 0u);
  store_digest(bytes + kStoreIdOffset, superblock.store_id);
  store_little_endian(bytes + kSequenceOffset, superblock.sequence);
  store_little_endian(bytes + kGenerationMaxOffset, superblock.generation_max);
  seal_header_page(kKind, target);
}

Result<Superblock> decode_superblock(std::span<const std::byte> source) {
  Status status = verify_header_page(kKind, kBodyEndOffset, source);
  if (!status.is_ok()) return status;
  const std::byte* bytes = source.data();
  const auto flags = load_little_endian<std::uint32_t>(bytes + kFlagsOffset);
  if ((flags & ~kCleanFlag) != 0) {
    return Status(StatusCode::kCorrupt,
                  "cannot read superblock: unknown flags=" + std::to_string(flags));
  }
  Superblock superblock;
  superblock.store_id = load_digest(bytes + kStoreIdOffset);
  superblock.sequence = load_little_endian<std::uint64_t>(bytes + kSequenceOffset);
  superblock.is_clean = (flags & kCleanFlag) != 0;
  superblock.generation_max = load_little_endian<std::uint64_t>(bytes + kGenerationMaxOffset);
  return superblock;
}

}  // namespace kvtier::format
