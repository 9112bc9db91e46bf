// Fuzz target: any bytes as a uses file; what decodes must encode to the same bytes. To let the
// fuzzer past the checksums, they are also tried with the right ones put in. Single-threaded.
#include "format/uses_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "format/header_page.h"
#include "format/little_endian.h"

namespace {

using namespace kvtier::format;

constexpr std::size_t kBodyChecksumOffset = 56;

void try_uses_file(std::span<const std::byte> source) {
  const auto file = decode_uses_file(source);
  if (!file.is_ok()) return;
  const std::vector<std::byte> target = encode_uses_file(file.value());
  KVTIER_CHECK(std::equal(source.begin(), source.end(), target.begin(), target.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t data_bytes) {
  const std::span<const std::byte> source = std::as_bytes(std::span(data, data_bytes));
  try_uses_file(source);
  if (data_bytes < kHeaderPageBytes) return 0;
  std::vector<std::byte> sealed(source.begin(), source.end());
  const std::uint64_t body_checksum = kvtier::checksum_metadata(
      source.subspan(kHeaderPageBytes), seed_of(ChecksumPurpose::kUsesFileBody));
  store_little_endian(sealed.data() + kBodyChecksumOffset, body_checksum);
  seal_header_page({"uses file", "KVTIERUS", ChecksumPurpose::kUsesFile},
                   std::span(sealed).first(kHeaderPageBytes));
  try_uses_file(sealed);
  return 0;
}
