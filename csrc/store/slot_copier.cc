// One read and one write a slot. Not thread-safe.
#include "store/slot_copier.h"

#include "disk/segment_file.h"
#include "memory/aligned_buffer.h"

namespace kvtier::store {

SlotCopier::~SlotCopier() {
  close(source_);
  close(target_);
}

Status SlotCopier::copy(SlotRef source, SlotRef target) {
  const std::uint64_t slot_bytes = slots_.slot_bytes(source);
  const AlignedBuffer room = make_aligned_buffer(slot_bytes);
  const std::span<std::byte> bytes(room.get(), slot_bytes);
  const auto read_fd = open(source_, source.segment_index);
  if (!read_fd.is_ok()) return read_fd.status();
  const Status read = directory_.read_at(read_fd.value(), offset_of(source), bytes);
  if (!read.is_ok()) return read;
  const auto write_fd = open(target_, target.segment_index);
  Status written = write_fd.status();
  if (written.is_ok()) written = directory_.write_at(write_fd.value(), offset_of(target), bytes);
  is_writable_ = written.is_ok();
  return written;
}

std::uint64_t SlotCopier::offset_of(SlotRef slot) const {
  return tier_.header_of(slot.segment_index).slot_offset_bytes(slot.slot_index);
}

Result<int> SlotCopier::open(OpenedSegment& opened, std::uint16_t segment_index) {
  if (opened.fd >= 0 && opened.segment_index == segment_index) return opened.fd;
  close(opened);
  const std::uint32_t segment_id = tier_.header_of(segment_index).segment_id;
  auto fd = directory_.open_file(format::segment_file_name(segment_id), OpenFlags{});
  if (fd.is_ok()) opened = OpenedSegment{segment_index, fd.value()};
  return fd;
}

void SlotCopier::close(OpenedSegment& opened) {
  if (opened.fd >= 0) directory_.close_file(opened.fd);
  opened.fd = -1;
}

}  // namespace kvtier::store
