// Fuzz target: any bytes as a segment header and as a segment file name; what decodes must encode
// to the same bytes, and its geometry must stay inside the file. To let the fuzzer past the
// checksum, headers are also tried with the right one put in. Single-threaded.
#include "format/segment_header.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "format/header_page.h"

namespace {

using namespace kvtier::format;

void check_geometry(const SegmentHeader& header) {
  KVTIER_CHECK(header.file_bytes() <= std::uint64_t{1} << 62);
  KVTIER_CHECK(header.table_offset_bytes + header.table_bytes() <= header.payload_offset_bytes);
  for (const std::uint32_t slot_index : {0u, header.num_slots / 2, header.num_slots - 1}) {
    KVTIER_CHECK(header.entry_offset_bytes(slot_index) + header.entry_bytes() <=
                 header.table_bytes());
    KVTIER_CHECK(header.slot_offset_bytes(slot_index) + header.slot_bytes <= header.file_bytes());
  }
}

void try_header(std::span<const std::byte> source) {
  const auto header = decode_segment_header(source);
  if (!header.is_ok()) return;
  check_geometry(header.value());
  std::vector<std::byte> target(kSegmentHeaderBytes, std::byte{0xaa});
  encode_segment_header(header.value(), target);
  KVTIER_CHECK(std::equal(source.begin(), source.end(), target.begin(), target.end()));
}

void try_file_name(std::string_view name) {
  const auto segment_id = parse_segment_file_name(name);
  if (segment_id) KVTIER_CHECK(segment_file_name(*segment_id) == name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t data_bytes) {
  try_file_name({reinterpret_cast<const char*>(data), data_bytes});
  const std::span<const std::byte> source = std::as_bytes(std::span(data, data_bytes));
  try_header(source);
  if (data_bytes != kHeaderPageBytes) return 0;
  std::vector<std::byte> sealed(source.begin(), source.end());
  seal_header_page({"segment header", "KVTIERSG", ChecksumPurpose::kSegmentHeader}, sealed);
  try_header(sealed);
  return 0;
}
