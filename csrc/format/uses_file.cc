// Uses file bytes (table in docs/disk_format.md). Thread-safe.
#include "format/uses_file.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "format/header_page.h"
#include "format/little_endian.h"

namespace kvtier::format {

namespace {

constexpr HeaderKind kKind = {"uses file", "KVTIERUS", ChecksumPurpose::kUsesFile};

constexpr std::size_t kNumCountsOffset = kHeaderBodyOffset;
constexpr std::size_t kStoreIdOffset = 16;
constexpr std::size_t kGenerationOffset = 32;
constexpr std::size_t kNumBlocksOffset = 40;
constexpr std::size_t kNumUsesOffset = 44;
constexpr std::size_t kNumCallsOffset = 48;
constexpr std::size_t kBodyChecksumOffset = 56;
constexpr std::size_t kBodyEndOffset = 64;

constexpr std::size_t kBlockBytes = 10;
constexpr std::size_t kCountBytes = 10;
constexpr std::size_t kUseBytes = 8;

std::uint64_t body_bytes(std::uint64_t num_blocks, std::uint64_t num_counts,
                         std::uint64_t num_uses) {
  return num_blocks * kBlockBytes + num_counts * kCountBytes + num_uses * kUseBytes;
}

std::uint64_t checksum_body(std::span<const std::byte> body) {
  return checksum_metadata(body, seed_of(ChecksumPurpose::kUsesFileBody));
}

void encode_block(const UsedBlock& block, std::byte* target) {
  store_little_endian(target, block.key_tag);
  store_little_endian(target + 4, block.age);
  target[8] = std::byte{block.use_class};
  target[9] = std::byte{block.num_uses};
}

UsedBlock decode_block(const std::byte* source) {
  return {load_little_endian<std::uint32_t>(source), load_little_endian<std::uint32_t>(source + 4),
          std::to_integer<std::uint8_t>(source[8]), std::to_integer<std::uint8_t>(source[9])};
}

void encode_count(const ReuseCount& count, std::byte* target) {
  store_little_endian(target, count.cell);
  store_little_endian(target + 2, std::bit_cast<std::uint32_t>(count.at_risk));
  store_little_endian(target + 6, std::bit_cast<std::uint32_t>(count.returns));
}

ReuseCount decode_count(const std::byte* source) {
  return {load_little_endian<std::uint16_t>(source),
          std::bit_cast<float>(load_little_endian<std::uint32_t>(source + 2)),
          std::bit_cast<float>(load_little_endian<std::uint32_t>(source + 6))};
}

void encode_use(const UseRecord& use, std::byte* target) {
  store_little_endian(target, use.key_tag);
  store_little_endian(target + 4, use.request_tag);
  target[6] = std::byte{use.use_class};
  target[7] = std::byte{use.num_uses};
}

UseRecord decode_use(const std::byte* source) {
  return {load_little_endian<std::uint32_t>(source), load_little_endian<std::uint16_t>(source + 4),
          std::to_integer<std::uint8_t>(source[6]), std::to_integer<std::uint8_t>(source[7])};
}

template <typename Record>
void leave_out_first(std::vector<Record>& records, std::uint64_t record_bytes,
                     std::uint64_t excess_bytes) {
  const std::uint64_t num_out = (excess_bytes + record_bytes - 1) / record_bytes;
  const auto end = std::min<std::uint64_t>(num_out, records.size());
  records.erase(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(end));
}

Status corrupt(const std::string& reason) {
  return Status(StatusCode::kCorrupt, "cannot read uses file: " + reason);
}

}  // namespace

std::uint64_t uses_file_bytes(const UsesFile& file) {
  return kHeaderPageBytes + body_bytes(file.blocks.size(), file.counts.size(), file.uses.size());
}

bool trim_uses_file(UsesFile& file, std::uint64_t bytes_max) {
  const auto excess_bytes = [&] {
    const std::uint64_t bytes = uses_file_bytes(file);
    return bytes > bytes_max ? bytes - bytes_max : 0;
  };
  leave_out_first(file.uses, kUseBytes, excess_bytes());
  if (excess_bytes() > 0) file.counts.clear();  // Some of them would be a model of another load.
  leave_out_first(file.blocks, kBlockBytes, excess_bytes());
  return excess_bytes() == 0;
}

std::vector<std::byte> encode_uses_file(const UsesFile& file) {
  std::vector<std::byte> bytes(uses_file_bytes(file));
  std::byte* at = bytes.data() + kHeaderPageBytes;
  for (const UsedBlock& block : file.blocks)
    encode_block(block, std::exchange(at, at + kBlockBytes));
  for (const ReuseCount& count : file.counts)
    encode_count(count, std::exchange(at, at + kCountBytes));
  for (const UseRecord& use : file.uses) encode_use(use, std::exchange(at, at + kUseBytes));
  const std::span<std::byte> page = std::span(bytes).first(kHeaderPageBytes);
  begin_header_page(kKind, page);
  store_digest(page.data() + kStoreIdOffset, file.store_id);
  store_little_endian(page.data() + kGenerationOffset, file.generation);
  store_little_endian(page.data() + kNumCallsOffset, file.num_calls);
  store_little_endian(page.data() + kNumBlocksOffset,
                      static_cast<std::uint32_t>(file.blocks.size()));
  store_little_endian(page.data() + kNumCountsOffset,
                      static_cast<std::uint32_t>(file.counts.size()));
  store_little_endian(page.data() + kNumUsesOffset, static_cast<std::uint32_t>(file.uses.size()));
  store_little_endian(page.data() + kBodyChecksumOffset,
                      checksum_body(std::span(bytes).subspan(kHeaderPageBytes)));
  seal_header_page(kKind, page);
  return bytes;
}

Result<UsesFile> decode_uses_file(std::span<const std::byte> source) {
  if (source.size() < kHeaderPageBytes || source.size() > kUsesFileBytesMax) {
    return corrupt("file_bytes=" + std::to_string(source.size()) + " at least " +
                   std::to_string(kHeaderPageBytes) + " at most " +
                   std::to_string(kUsesFileBytesMax));
  }
  const std::span<const std::byte> page = source.first(kHeaderPageBytes);
  Status status = verify_header_page(kKind, kBodyEndOffset, page);
  if (!status.is_ok()) return status;
  const std::span<const std::byte> body = source.subspan(kHeaderPageBytes);
  const auto num_blocks = load_little_endian<std::uint32_t>(page.data() + kNumBlocksOffset);
  const auto num_counts = load_little_endian<std::uint32_t>(page.data() + kNumCountsOffset);
  const auto num_uses = load_little_endian<std::uint32_t>(page.data() + kNumUsesOffset);
  if (body_bytes(num_blocks, num_counts, num_uses) != body.size()) {
    return corrupt("its length is not that of its records");
  }
  if (load_little_endian<std::uint64_t>(page.data() + kBodyChecksumOffset) != checksum_body(body)) {
    return corrupt("the checksum of its records does not fit");
  }
  UsesFile file;
  file.store_id = load_digest(page.data() + kStoreIdOffset);
  file.generation = load_little_endian<std::uint64_t>(page.data() + kGenerationOffset);
  file.num_calls = load_little_endian<std::uint64_t>(page.data() + kNumCallsOffset);
  file.blocks.resize(num_blocks);
  file.counts.resize(num_counts);
  file.uses.resize(num_uses);
  const std::byte* at = body.data();
  for (UsedBlock& block : file.blocks) block = decode_block(std::exchange(at, at + kBlockBytes));
  for (ReuseCount& count : file.counts) count = decode_count(std::exchange(at, at + kCountBytes));
  for (UseRecord& use : file.uses) use = decode_use(std::exchange(at, at + kUseBytes));
  return file;
}

}  // namespace kvtier::format
