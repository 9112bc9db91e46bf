// Namespace table: namespace index -> id and canonical description, as text that a person can read,
// kept in two files written in turn. Bytes <-> values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

namespace kvtier::format {

inline constexpr const char* kNamespaceFileNames[2] = {"kvtier.namespaces.0",
                                                       "kvtier.namespaces.1"};
/// A larger table is refused when written and called corrupt when read.
inline constexpr std::size_t kNamespaceTableBytesMax = 64u << 20;

struct NamespaceRecord {
  std::uint32_t namespace_index = 0;
  NamespaceId id;
  std::string description;  // Canonical JSON in one line.
};

struct NamespaceTable {
  Digest128 store_id;
  std::uint64_t sequence = 0;
  std::vector<NamespaceRecord> records;
};

/// Text: a first line with format name, version, store id, sequence, number of records and checksum
/// of everything else; then `index id description` a line. Line breaks in a description and an
/// index or id that stands there twice are refused by a check. Whoever writes it minds the size
/// limit.
std::string encode_namespace_table(const NamespaceTable& table);
/// kUnsupported: another version. kCorrupt: damaged, cut, duplicate index or id, too large.
Result<NamespaceTable> decode_namespace_table(std::string_view text);

}  // namespace kvtier::format
