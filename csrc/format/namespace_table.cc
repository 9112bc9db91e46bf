// Namespace table text (grammar in docs/disk_format.md). Thread-safe.
#include "format/namespace_table.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <optional>

#include "base/check.h"
#include "base/checksum.h"
#include "format/checksum_purpose.h"
#include "format/superblock.h"

namespace kvtier::format {

namespace {

constexpr std::string_view kFormatName = "kvtier-namespaces";
constexpr std::size_t kChecksumDigits = 16;
constexpr std::size_t kIdDigits = 32;
// The shortest record: "0 ", an id, a space, no description, a line break.
constexpr std::size_t kRecordBytesMin = 2 + kIdDigits + 2;

Status corrupt(const std::string& reason) {
  return Status(StatusCode::kCorrupt, "cannot read namespace table: " + reason);
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Of the first line up to its last field, and of everything after that line.
std::string checksum_text(std::string_view first_line_head, std::string_view rest) {
  const std::uint64_t seed =
      checksum_metadata(bytes_of(rest), seed_of(ChecksumPurpose::kNamespaceTable));
  const std::uint64_t checksum = checksum_metadata(bytes_of(first_line_head), seed);
  char digits[kChecksumDigits + 1];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, checksum);
  return digits;
}

// The text up to the next `separator`, taken from `text` together with it; nothing without one.
std::optional<std::string_view> take_until(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view field = text.substr(0, end);
  text.remove_prefix(end + 1);
  return field;
}

// Decimal digits without leading zeros, as encode writes them: one number has one spelling.
template <typename Integer>
std::optional<Integer> parse_number(std::optional<std::string_view> field) {
  if (!field || field->empty()) return std::nullopt;
  if (field->size() > 1 && field->front() == '0') return std::nullopt;
  Integer value = 0;
  const auto [end, error] = std::from_chars(field->data(), field->data() + field->size(), value);
  if (error != std::errc{} || end != field->data() + field->size()) return std::nullopt;
  return value;
}

std::optional<unsigned> hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a' + 10);
  return std::nullopt;
}

std::optional<Digest128> parse_digest(std::optional<std::string_view> field) {
  if (!field || field->size() != kIdDigits) return std::nullopt;
  Digest128 digest;
  for (std::size_t byte_index = 0; byte_index < digest.bytes.size(); ++byte_index) {
    const auto high = hex_value((*field)[2 * byte_index]);
    const auto low = hex_value((*field)[2 * byte_index + 1]);
    if (!high || !low) return std::nullopt;
    digest.bytes[byte_index] = static_cast<std::uint8_t>(*high << 4 | *low);
  }
  return digest;
}

bool is_one_line(std::string_view description) {
  return description.find_first_of("\n\r") == std::string_view::npos;
}

std::optional<NamespaceRecord> parse_record(std::string_view line) {
  const auto namespace_index = parse_number<std::uint32_t>(take_until(line, ' '));
  const auto id = parse_digest(take_until(line, ' '));
  if (!namespace_index || !id || !is_one_line(line)) return std::nullopt;
  return NamespaceRecord{*namespace_index, *id, std::string(line)};
}

template <typename Value>
bool has_duplicate(std::vector<Value> values) {
  std::sort(values.begin(), values.end());
  return std::adjacent_find(values.begin(), values.end()) != values.end();
}

bool has_duplicate_record(const std::vector<NamespaceRecord>& records) {
  std::vector<std::uint32_t> namespace_indices;
  std::vector<NamespaceId> ids;
  for (const NamespaceRecord& record : records) {
    namespace_indices.push_back(record.namespace_index);
    ids.push_back(record.id);
  }
  return has_duplicate(std::move(namespace_indices)) || has_duplicate(std::move(ids));
}

Result<NamespaceTable> parse_records(NamespaceTable table, std::uint64_t num_records,
                                     std::string_view text) {
  // Before anything is reserved for a number that only the text claims.
  if (num_records > text.size() / kRecordBytesMin) return corrupt("fewer records than it says");
  table.records.reserve(num_records);
  while (!text.empty()) {
    const auto line = take_until(text, '\n');
    if (!line) return corrupt("its last line is cut");
    auto record = parse_record(*line);
    if (!record) return corrupt("bad record: record_index=" + std::to_string(table.records.size()));
    table.records.push_back(std::move(*record));
  }
  if (table.records.size() != num_records) {
    return corrupt("want_records=" + std::to_string(num_records) +
                   " got_records=" + std::to_string(table.records.size()));
  }
  if (has_duplicate_record(table.records)) return corrupt("an index or id stands there twice");
  return table;
}

}  // namespace

std::string encode_namespace_table(const NamespaceTable& table) {
  KVTIER_CHECK(!has_duplicate_record(table.records));
  std::string rest;
  for (const NamespaceRecord& record : table.records) {
    KVTIER_CHECK(is_one_line(record.description));
    rest += std::to_string(record.namespace_index) + ' ' + record.id.to_hex() + ' ';
    rest += record.description;
    rest += '\n';
  }
  std::string text = std::string(kFormatName) + ' ' + std::to_string(kFormatVersion) + ' ' +
                     table.store_id.to_hex() + ' ' + std::to_string(table.sequence) + ' ' +
                     std::to_string(table.records.size()) + ' ';
  text += checksum_text(text, rest) + '\n';
  return text + rest;
}

Result<NamespaceTable> decode_namespace_table(std::string_view text) {
  if (text.size() > kNamespaceTableBytesMax) {
    return corrupt("too large: got_bytes=" + std::to_string(text.size()));
  }
  const std::size_t line_end = text.find('\n');
  if (line_end == std::string_view::npos) return corrupt("no first line");
  std::string_view line = text.substr(0, line_end + 1);
  const std::string_view rest = text.substr(line_end + 1);
  // Format name first, version second and the checksum last hold for all versions.
  if (line_end < kFormatName.size() + kChecksumDigits) return corrupt("first line too short");
  const std::string_view head = line.substr(0, line_end - kChecksumDigits);
  if (line.substr(head.size(), kChecksumDigits) != checksum_text(head, rest)) {
    return corrupt("its checksum does not fit");
  }
  line = head;
  if (take_until(line, ' ') != kFormatName) return corrupt("not a namespace table");
  const auto version = parse_number<std::uint32_t>(take_until(line, ' '));
  if (!version) return corrupt("no version");
  if (*version != kFormatVersion) {
    return Status(StatusCode::kUnsupported,
                  "cannot read namespace table: version=" + std::to_string(*version) +
                      " supported_version=" + std::to_string(kFormatVersion));
  }
  const auto store_id = parse_digest(take_until(line, ' '));
  const auto sequence = parse_number<std::uint64_t>(take_until(line, ' '));
  const auto num_records = parse_number<std::uint64_t>(take_until(line, ' '));
  if (!store_id || !sequence || !num_records || !line.empty()) return corrupt("bad first line");
  NamespaceTable table;
  table.store_id = *store_id;
  table.sequence = *sequence;
  return parse_records(std::move(table), *num_records, rest);
}

}  // namespace kvtier::format
