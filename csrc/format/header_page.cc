// Header page: magic, version and checksum. Thread-safe.
#include "format/header_page.h"

#include <cstring>
#include <string>

#include "base/check.h"
#include "base/checksum.h"
#include "format/little_endian.h"
#include "format/superblock.h"

namespace kvtier::format {

namespace {

Status corrupt(const HeaderKind& kind, const std::string& reason) {
  return Status(StatusCode::kCorrupt, "cannot read " + std::string(kind.name) + ": " + reason);
}

}  // namespace

void begin_header_page(const HeaderKind& kind, std::span<std::byte> target) {
  KVTIER_CHECK(target.size() == kHeaderPageBytes);
  std::memset(target.data(), 0, target.size());
  std::memcpy(target.data(), kind.magic, kHeaderMagicBytes);
  store_little_endian(target.data() + kHeaderMagicBytes, kFormatVersion);
}

void seal_header_page(const HeaderKind& kind, std::span<std::byte> target) {
  const std::uint64_t checksum =
      checksum_metadata(target.first(kHeaderChecksumOffset), seed_of(kind.purpose));
  store_little_endian(target.data() + kHeaderChecksumOffset, checksum);
}

Status verify_header_page(const HeaderKind& kind, std::size_t body_end_offset,
                          std::span<const std::byte> source) {
  if (source.size() != kHeaderPageBytes) {
    return corrupt(kind, "want_bytes=" + std::to_string(kHeaderPageBytes) +
                             " got_bytes=" + std::to_string(source.size()));
  }
  if (std::memcmp(source.data(), kind.magic, kHeaderMagicBytes) != 0) {
    return corrupt(kind, "the first bytes are not those of one");
  }
  const auto checksum = load_little_endian<std::uint64_t>(source.data() + kHeaderChecksumOffset);
  if (checksum != checksum_metadata(source.first(kHeaderChecksumOffset), seed_of(kind.purpose))) {
    return corrupt(kind, "its checksum does not fit");
  }
  const auto version = load_little_endian<std::uint32_t>(source.data() + kHeaderMagicBytes);
  if (version != kFormatVersion) {
    return Status(StatusCode::kUnsupported,
                  "cannot read " + std::string(kind.name) + ": version=" + std::to_string(version) +
                      " supported_version=" + std::to_string(kFormatVersion));
  }
  const auto rest = source.subspan(body_end_offset, kHeaderChecksumOffset - body_end_offset);
  if (!is_all_zero(rest)) return corrupt(kind, "bytes are set that this version leaves zero");
  return Status::ok();
}

}  // namespace kvtier::format
