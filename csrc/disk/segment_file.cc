// Making and scanning segment files. Blocking.
#include "disk/segment_file.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "memory/aligned_buffer.h"

namespace kvtier::disk {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kScanBytes = 1u << 20;

/// Closes the descriptor unless it was released.
class FdGuard {
 public:
  FdGuard(Directory& directory, int fd) : directory_(directory), fd_(fd) {}
  ~FdGuard() {
    if (fd_ >= 0) directory_.close_file(fd_);
  }
  FdGuard(const FdGuard&) = delete;
  FdGuard& operator=(const FdGuard&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  Directory& directory_;
  int fd_;
};

Status fill_new_file(Directory& directory, int fd, const format::SegmentHeader& header) {
  Status reserved = directory.allocate(fd, 0, header.file_bytes());
  if (reserved.code() == StatusCode::kUnsupported) {
    reserved = directory.truncate(fd, header.file_bytes());
  }
  if (!reserved.is_ok()) return reserved;
  const AlignedBuffer page = make_aligned_buffer(format::kSegmentHeaderBytes);
  const std::span<std::byte> bytes(page.get(), format::kSegmentHeaderBytes);
  format::encode_segment_header(header, bytes);
  Status written = directory.write_at(fd, 0, bytes);
  if (!written.is_ok()) return written;
  Status synced = directory.sync_file(fd);
  if (!synced.is_ok()) return synced;
  return directory.sync();
}

}  // namespace

Result<CreatedFile> create_segment_file(Directory& directory, const format::SegmentHeader& header,
                                        bool is_direct) {
  const std::string name = format::segment_file_name(header.segment_id);
  auto opened = directory.open_file(name, OpenFlags{true, true, is_direct});
  if (!opened.is_ok()) return opened.status();
  FdGuard fd(directory, opened.value());
  Status filled = fill_new_file(directory, fd.get(), header);
  if (filled.is_ok()) {
    auto stat = directory.stat_fd(fd.get());
    if (stat.is_ok()) return CreatedFile{fd.release(), stat.value().allocated_bytes};
    filled = stat.status();
  }
  // The name is ours: it was created just now with is_new. A failed removal leaves an empty file
  // that the next open drops.
  (void)directory.remove_file(name).is_ok();
  return filled;
}

Status remove_segment_file(Directory& directory, const std::string& name, bool& is_void) {
  is_void = false;
  Status removed = directory.remove_file(name);
  if (removed.is_ok()) return directory.sync();
  auto opened = directory.open_file(name, OpenFlags{});
  if (!opened.is_ok()) return removed;
  const FdGuard fd(directory, opened.value());
  const std::vector<std::byte> zeros(format::kSegmentHeaderBytes);
  is_void = directory.write_at(fd.get(), 0, zeros).is_ok() && directory.sync_file(fd.get()).is_ok();
  return removed;
}

Result<format::SegmentHeader> read_segment_header(Directory& directory, const std::string& name) {
  auto opened = directory.open_file(name, OpenFlags{});
  if (!opened.is_ok()) return opened.status();
  const FdGuard fd(directory, opened.value());
  const AlignedBuffer buffer = make_aligned_buffer(format::kSegmentHeaderBytes);
  const std::span<std::byte> head(buffer.get(), format::kSegmentHeaderBytes);
  const Status read = directory.read_at(fd.get(), 0, head);
  if (read.code() == StatusCode::kIoError && read.os_errno() == 0) {
    return Status(StatusCode::kCorrupt, read.message());  // Too short to be one.
  }
  if (!read.is_ok()) return read;
  return format::decode_segment_header(head);
}

bool is_unfinished_segment(Directory& directory, const std::string& name) {
  auto opened = directory.open_file(name, OpenFlags{});
  if (!opened.is_ok()) return false;
  const FdGuard fd(directory, opened.value());
  auto stat = directory.stat_fd(fd.get());
  if (!stat.is_ok()) return false;
  if (stat.value().length_bytes == 0) return true;
  const std::size_t head_bytes = format::kSegmentHeaderBytes + format::kTablePageBytes;
  const AlignedBuffer buffer = make_aligned_buffer(head_bytes);
  const std::span<std::byte> head(buffer.get(), head_bytes);
  if (!directory.read_at(fd.get(), 0, head).is_ok()) return false;
  return std::all_of(head.begin(), head.end(), [](std::byte it) { return it == std::byte{0}; });
}

Result<SegmentScan> scan_segment_file(
    Directory& directory, const std::string& name,
    const std::function<void(std::uint32_t slot_index, format::SlotEntry& entry)>& visit) {
  auto opened = directory.open_file(name, OpenFlags{});
  if (!opened.is_ok()) return opened.status();
  const FdGuard fd(directory, opened.value());
  const AlignedBuffer buffer = make_aligned_buffer(kScanBytes);
  const std::span<std::byte> head(buffer.get(), format::kSegmentHeaderBytes);
  Status read = directory.read_at(fd.get(), 0, head);
  if (!read.is_ok()) return read;
  auto decoded = format::decode_segment_header(head);
  if (!decoded.is_ok()) return decoded.status();
  SegmentScan scan;
  scan.header = decoded.value();
  auto stat = directory.stat_fd(fd.get());
  if (!stat.is_ok()) return stat.status();
  scan.allocated_bytes = stat.value().allocated_bytes;
  if (stat.value().length_bytes < scan.header.payload_offset_bytes) {
    return Status(StatusCode::kCorrupt,
                  "segment file ends inside its slot table: name=" + name +
                      " length_bytes=" + std::to_string(stat.value().length_bytes));
  }

  format::SlotEntry entry;
  const std::uint64_t entry_bytes = scan.header.entry_bytes();
  const std::uint64_t table_bytes = scan.header.table_bytes();
  // Entries never straddle a page, so pieces of whole pages (or of whole large entries) hold whole
  // entries.
  const std::uint64_t step_bytes = entry_bytes <= kPageBytes
                                       ? kScanBytes
                                       : (entry_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  KVTIER_CHECK(step_bytes <= kScanBytes);
  std::uint32_t slot_index = 0;
  for (std::uint64_t at = 0; at < table_bytes; at += step_bytes) {
    const std::uint64_t length_bytes = std::min(step_bytes, table_bytes - at);
    const std::span<std::byte> piece(buffer.get(), length_bytes);
    read = directory.read_at(fd.get(), scan.header.table_offset_bytes + at, piece);
    if (!read.is_ok()) return read;
    for (; slot_index < scan.header.num_slots; ++slot_index) {
      const std::uint64_t offset_bytes = scan.header.entry_offset_bytes(slot_index);
      if (offset_bytes >= at + length_bytes) break;
      const auto state = format::decode_slot_entry(piece.subspan(offset_bytes - at, entry_bytes),
                                                   scan.header.num_parts, entry);
      if (state == format::SlotEntryState::kDamaged) ++scan.num_damaged;
      if (state != format::SlotEntryState::kUsed) continue;
      ++scan.num_used;
      visit(slot_index, entry);
    }
  }
  return scan;
}

}  // namespace kvtier::disk
