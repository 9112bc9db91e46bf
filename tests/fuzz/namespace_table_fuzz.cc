// Fuzz target: any text as a namespace table; what decodes must encode to the same text. To let the
// fuzzer past the checksum, it is also tried with the right one put in. Single-threaded.
#include "format/namespace_table.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "base/check.h"
#include "base/checksum.h"
#include "format/checksum_purpose.h"

namespace {

constexpr std::size_t kChecksumDigits = 16;

std::uint64_t checksum_of(const std::string& text, std::uint64_t purpose) {
  return kvtier::checksum_metadata(std::as_bytes(std::span(text.data(), text.size())), purpose);
}

void try_table(const std::string& text) {
  const auto table = kvtier::format::decode_namespace_table(text);
  if (!table.is_ok()) return;
  KVTIER_CHECK(kvtier::format::encode_namespace_table(table.value()) == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t data_bytes) {
  std::string text(reinterpret_cast<const char*>(data), data_bytes);
  try_table(text);
  const std::size_t line_end = text.find('\n');
  if (line_end == std::string::npos || line_end < kChecksumDigits) return 0;
  const std::uint64_t seed = checksum_of(text.substr(line_end + 1),
                                         seed_of(kvtier::format::ChecksumPurpose::kNamespaceTable));
  const std::size_t digits_begin = line_end - kChecksumDigits;
  char digits[kChecksumDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(checksum_of(text.substr(0, digits_begin), seed)));
  try_table(text.replace(digits_begin, kChecksumDigits, digits));
  return 0;
}
