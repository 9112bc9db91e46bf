// The simulated disk's data: reads, writes and syncs with their faults, and the loss of power.
// Not thread-safe.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "testing/sim_disk_state.h"

namespace kvtier::testing {
namespace {

using Pieces = std::span<const std::span<std::byte>>;

std::uint64_t length_of(Pieces pieces) {
  std::uint64_t total_bytes = 0;
  for (const auto& piece : pieces) total_bytes += piece.size();
  return total_bytes;
}

std::vector<std::byte> gather(Pieces pieces) {
  std::vector<std::byte> bytes;
  bytes.reserve(length_of(pieces));
  for (const auto& piece : pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

void scatter(std::span<const std::byte> bytes, Pieces pieces) {
  for (const auto& piece : pieces) {
    const std::size_t num_taken = std::min(piece.size(), bytes.size());
    std::copy_n(bytes.begin(), num_taken, piece.begin());
    bytes = bytes.subspan(num_taken);
  }
}

void flip_bit(std::vector<std::byte>& bytes, Random& random) {
  if (bytes.empty()) return;
  const std::uint64_t place = random.below(bytes.size());
  bytes[place] ^= static_cast<std::byte>(1u << random.below(8));
}

std::string describe(const char* action, int fd, std::uint64_t offset_bytes,
                     std::uint64_t want_bytes, std::uint64_t got_bytes) {
  return std::string(action) + " file: fd=" + std::to_string(fd) +
         " offset_bytes=" + std::to_string(offset_bytes) +
         " want_bytes=" + std::to_string(want_bytes) + " got_bytes=" + std::to_string(got_bytes);
}

}  // namespace

bool SimDiskState::is_aligned(const Handle& handle, std::uint64_t offset_bytes, Pieces pieces) {
  if (!handle.is_direct) return true;
  if (faults_.is_direct_refused) {
    ++num_direct_refused_;
    return false;
  }
  const std::uint64_t alignment_bytes = options_.direct_alignment_bytes;
  if (offset_bytes % alignment_bytes != 0) return false;
  for (const auto& piece : pieces) {
    if (reinterpret_cast<std::uintptr_t>(piece.data()) % alignment_bytes != 0) return false;
    if (piece.size() % alignment_bytes != 0) return false;
  }
  return true;
}

// Where a misdirected op of that length could land inside the file: half of the time at a multiple
// of its length, where a whole other slot may lie; the place itself when there is no other.
std::uint64_t SimDiskState::other_offset(std::uint64_t offset_bytes, std::uint64_t length_bytes,
                                         std::uint64_t file_bytes) {
  if (length_bytes == 0 || file_bytes <= length_bytes) return offset_bytes;
  const std::uint64_t step_bytes =
      random_.below(2) == 0 ? length_bytes : options_.direct_alignment_bytes;
  const std::uint64_t num_places = (file_bytes - length_bytes) / step_bytes + 1;
  const std::uint64_t place = random_.below(num_places) * step_bytes;
  if (place != offset_bytes) return place;
  return num_places > 1 ? (place + step_bytes) % (num_places * step_bytes) : offset_bytes;
}

SimTransfer SimDiskState::read(int fd, std::uint64_t offset_bytes, Pieces pieces) {
  ++num_reads_;
  const std::uint64_t want_bytes = length_of(pieces);
  const auto fail = [&](int os_errno, std::uint64_t got_bytes) -> SimTransfer {
    const std::string text = describe("cannot read", fd, offset_bytes, want_bytes, got_bytes);
    if (os_errno == 0) return {Status(StatusCode::kIoError, text), got_bytes};
    return {Status::from_errno(os_errno, text), got_bytes};
  };
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return fail(EBADF, 0);
  if (!is_aligned(*handle, offset_bytes, pieces)) return fail(EINVAL, 0);
  if (random_.is_hit(faults_.read_error)) return fail(EIO, 0);
  const std::vector<std::byte>& current = bytes_of(*handle->file);
  std::uint64_t from_bytes = offset_bytes;
  if (random_.is_hit(faults_.misdirected_read)) {
    from_bytes = other_offset(offset_bytes, want_bytes, current.size());
  }
  const std::uint64_t begin = std::min<std::uint64_t>(from_bytes, current.size());
  std::uint64_t got_bytes = std::min<std::uint64_t>(want_bytes, current.size() - begin);
  if (got_bytes > 0 && random_.is_hit(faults_.short_transfer)) got_bytes = random_.below(got_bytes);
  const auto first = current.begin() + static_cast<std::ptrdiff_t>(begin);
  std::vector<std::byte> bytes(first, first + static_cast<std::ptrdiff_t>(got_bytes));
  if (random_.is_hit(faults_.read_flip)) flip_bit(bytes, random_);
  scatter(bytes, pieces);
  if (got_bytes < want_bytes) return fail(0, got_bytes);
  return {Status::ok(), got_bytes};
}

Status SimDiskState::store_bytes(SimFile& file, std::uint64_t offset_bytes,
                                 std::span<const std::byte> source) {
  const std::string text = "cannot write file: offset_bytes=" + std::to_string(offset_bytes) +
                           " want_bytes=" + std::to_string(source.size()) + " got_bytes=0";
  if (offset_bytes > kSimFileBytesMax || source.size() > kSimFileBytesMax - offset_bytes) {
    return Status::from_errno(EFBIG, text);
  }
  if (file.missing_bytes(offset_bytes, source.size()) > free_bytes()) {
    return Status::from_errno(ENOSPC, text);
  }
  file.write(bytes_of(file), offset_bytes, source, ++change_sequence_);
  return Status::ok();
}

SimTransfer SimDiskState::write(int fd, std::uint64_t offset_bytes, Pieces pieces) {
  ++num_writes_;
  std::vector<std::byte> bytes = gather(pieces);
  const std::uint64_t want_bytes = bytes.size();
  const auto fail = [&](int os_errno, std::uint64_t got_bytes) -> SimTransfer {
    const std::string text = describe("cannot write", fd, offset_bytes, want_bytes, got_bytes);
    if (os_errno == 0) return {Status(StatusCode::kIoError, text), got_bytes};
    return {Status::from_errno(os_errno, text), got_bytes};
  };
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return fail(EBADF, 0);
  if (!is_aligned(*handle, offset_bytes, pieces)) return fail(EINVAL, 0);
  if (random_.is_hit(faults_.write_error)) return fail(EIO, 0);
  SimFile& file = *handle->file;
  if (random_.is_hit(faults_.write_flip)) flip_bit(bytes, random_);
  std::uint64_t target_bytes = offset_bytes;
  if (random_.is_hit(faults_.misdirected_write)) {
    const std::uint64_t end_bytes = offset_bytes + want_bytes;
    target_bytes = other_offset(offset_bytes, want_bytes,
                                std::max<std::uint64_t>(bytes_of(file).size(), end_bytes));
  }
  int os_errno = 0;
  if (want_bytes > 0 && random_.is_hit(faults_.torn_write)) {
    const std::uint64_t num_sectors =
        (want_bytes + options_.sector_bytes - 1) / options_.sector_bytes;
    bytes.resize(random_.below(num_sectors) * options_.sector_bytes);
    os_errno = EIO;
  } else if (want_bytes > 0 && random_.is_hit(faults_.short_transfer)) {
    bytes.resize(random_.below(want_bytes));
  }
  const Status stored = store_bytes(file, target_bytes, bytes);
  if (!stored.is_ok()) return fail(stored.os_errno(), 0);
  written_bytes_ += bytes.size();
  if (bytes.size() < want_bytes) return fail(os_errno, bytes.size());
  return {Status::ok(), want_bytes};
}

SimSyncSnapshot SimDiskState::begin_sync(int fd) {
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return {};
  return handle->file->begin_sync(bytes_of(*handle->file), change_sequence_);
}

Status SimDiskState::finish_sync(int fd, const SimSyncSnapshot& snapshot) {
  const std::string text = "cannot sync file: fd=" + std::to_string(fd);
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return Status::from_errno(EBADF, text);
  if (random_.is_hit(faults_.sync_error)) return Status::from_errno(EIO, text);
  handle->file->finish_sync(snapshot);
  return Status::ok();
}

// Any part of a write that was under way may have arrived, sector by sector.
void SimDiskState::apply_interrupted_write(const IoOp& op) {
  const Handle* handle = find_handle(op.fd);
  if (handle == nullptr || !is_aligned(*handle, op.offset_bytes, op.pieces)) return;
  const double arrived_probability = static_cast<double>(random_.below(3)) / 2;
  const std::vector<std::byte> bytes = gather(op.pieces);
  std::uint64_t place = 0;
  while (place < bytes.size()) {
    const std::uint64_t into_sector = (op.offset_bytes + place) % options_.sector_bytes;
    const std::uint64_t end =
        std::min<std::uint64_t>(bytes.size(), place + options_.sector_bytes - into_sector);
    if (random_.is_hit(arrived_probability)) {
      const auto source = std::span(bytes).subspan(place, end - place);
      static_cast<void>(store_bytes(*handle->file, op.offset_bytes + place, source));
    }
    place = end;
  }
}

void SimDiskState::apply_interrupted_writes() {
  for (const auto& queue : queues_) {
    for (const SimIoQueue::RunningOp& running : queue->running()) {
      if (running.op.kind == IoKind::kWrite) apply_interrupted_write(running.op);
    }
  }
}

void SimDiskState::lose_unsynced() {
  Names left = durable_names_;
  const std::uint64_t num_kept = random_.below(name_changes_.size() + 1);
  for (std::uint64_t index = 0; index < num_kept; ++index) {
    const NameChange& change = name_changes_[index];
    left.erase(change.name);
    if (change.kind == NameChangeKind::kCreate) left[change.name] = change.file;
    if (change.kind == NameChangeKind::kRename) left[change.target] = change.file;
  }
  std::map<std::string, std::vector<std::byte>> files;
  for (const auto& [name, file] : left) files[name] = file->lose_power(bytes_of(*file), random_);
  for (const auto& [name, file] : left) {
    file->name = name;
    file->unlinked_bytes.clear();
  }
  files_ = std::move(files);
  names_ = left;
  durable_names_ = std::move(left);
  name_changes_.clear();
}

void SimDiskState::crash(bool keeps_all) {
  reconcile();
  apply_interrupted_writes();
  for (const auto& queue : queues_) queue->kill();
  queues_.clear();
  if (!keeps_all) lose_unsynced();
  for (auto& [fd, handle] : handles_) handle.file->num_open = 0;
  handles_.clear();
  locks_.clear();
  ++generation_;
}

}  // namespace kvtier::testing
