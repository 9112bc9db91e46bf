// Header page: what the superblock and the segment header have in common, so that any build can
// tell "another version" from "damaged". Pure functions, thread-safe.
//
// Fixed for all versions: magic at 0, version at 8, checksum of everything before it in the last 8
// of 4,096 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "format/checksum_purpose.h"

namespace kvtier::format {

inline constexpr std::size_t kHeaderPageBytes = 4096;
inline constexpr std::size_t kHeaderMagicBytes = 8;
/// First byte that belongs to the structure itself.
inline constexpr std::size_t kHeaderBodyOffset = 12;
inline constexpr std::size_t kHeaderChecksumOffset = kHeaderPageBytes - 8;

struct HeaderKind {
  const char* name;   // For messages.
  const char* magic;  // kHeaderMagicBytes characters.
  ChecksumPurpose purpose;
};

/// Writes magic and version and zeroes the rest of the page.
void begin_header_page(const HeaderKind& kind, std::span<std::byte> target);
/// Writes the checksum, after the body.
void seal_header_page(const HeaderKind& kind, std::span<std::byte> target);
/// Ok: of this version and whole. kUnsupported: whole, another version. kCorrupt: anything else,
/// bytes set from `body_end_offset` on included (this version leaves them zero).
Status verify_header_page(const HeaderKind& kind, std::size_t body_end_offset,
                          std::span<const std::byte> source);

}  // namespace kvtier::format
