// Fuzz target: any bytes as a superblock; what decodes must encode to the same bytes. To let the
// fuzzer past the checksum, they are also tried with the right one put in. Single-threaded.
#include "format/superblock.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "format/header_page.h"

namespace {

using namespace kvtier::format;

void try_superblock(std::span<const std::byte> source) {
  const auto superblock = decode_superblock(source);
  if (!superblock.is_ok()) return;
  std::vector<std::byte> target(kSuperblockBytes, std::byte{0xaa});
  encode_superblock(superblock.value(), target);
  KVTIER_CHECK(std::equal(source.begin(), source.end(), target.begin(), target.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t data_bytes) {
  const std::span<const std::byte> source = std::as_bytes(std::span(data, data_bytes));
  try_superblock(source);
  if (data_bytes != kHeaderPageBytes) return 0;
  std::vector<std::byte> sealed(source.begin(), source.end());
  seal_header_page({"superblock", "KVTIERSB", ChecksumPurpose::kSuperblock}, sealed);
  try_superblock(sealed);
  return 0;
}
