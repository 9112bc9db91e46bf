// The simulated disk's names, space and time. Not thread-safe. Data paths: sim_disk_data.cc.
#include "testing/sim_disk_state.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvtier::testing {
namespace {

Status failure(int os_errno, const std::string& text) {
  Status status = Status::from_errno(os_errno, text);
  if (os_errno != ENOENT) return status;
  return Status(StatusCode::kNotFound, status.message(), os_errno);
}

}  // namespace

// Tests may add and remove files in `files()`; what they add counts as durable.
void SimDiskState::reconcile() {
  for (auto& [name, bytes] : files_) {
    if (names_.contains(name)) continue;
    auto file = std::make_shared<SimFile>(options_.sector_bytes, options_.file_system_block_bytes);
    file->name = name;
    file->adopt(bytes);
    names_[name] = file;
    durable_names_[name] = file;
  }
  for (auto entry = names_.begin(); entry != names_.end();) {
    if (files_.contains(entry->first)) {
      ++entry;
      continue;
    }
    entry->second->name.clear();
    durable_names_.erase(entry->first);
    entry = names_.erase(entry);
  }
}

std::vector<std::byte>& SimDiskState::bytes_of(SimFile& file) {
  if (file.name.empty()) return file.unlinked_bytes;
  const auto entry = files_.find(file.name);
  if (entry != files_.end()) return entry->second;
  file.name.clear();
  return file.unlinked_bytes;
}

void SimDiskState::create_file(const std::string& name) {
  auto file = std::make_shared<SimFile>(options_.sector_bytes, options_.file_system_block_bytes);
  file->name = name;
  files_[name] = {};
  names_[name] = file;
  name_changes_.push_back({NameChangeKind::kCreate, name, "", file});
}

Result<int> SimDiskState::open_file(const std::string& name, const OpenFlags& flags) {
  reconcile();
  if (names_.contains(name)) {
    if (flags.is_new) return failure(EEXIST, "cannot open file: name=" + name);
  } else {
    if (!flags.is_created) return failure(ENOENT, "cannot open file: name=" + name);
    create_file(name);
  }
  Handle handle{names_[name], flags.is_direct};
  ++handle.file->num_open;
  handles_[next_fd_] = std::move(handle);
  return next_fd_++;
}

void SimDiskState::close_file(int fd) {
  const auto entry = handles_.find(fd);
  if (entry == handles_.end()) return;
  --entry->second.file->num_open;
  handles_.erase(entry);
}

const SimDiskState::Handle* SimDiskState::find_handle(int fd) const {
  const auto entry = handles_.find(fd);
  return entry == handles_.end() ? nullptr : &entry->second;
}

void SimDiskState::unlink(const std::string& name) {
  SimFile& file = *names_[name];
  file.unlinked_bytes = std::move(files_[name]);
  file.name.clear();
  files_.erase(name);
  names_.erase(name);
}

Status SimDiskState::remove_file(const std::string& name) {
  reconcile();
  if (!names_.contains(name)) return failure(ENOENT, "cannot remove file: name=" + name);
  name_changes_.push_back({NameChangeKind::kRemove, name, "", names_[name]});
  unlink(name);
  return Status::ok();
}

Status SimDiskState::rename_file(const std::string& source, const std::string& target) {
  reconcile();
  if (!names_.contains(source)) {
    return failure(ENOENT, "cannot rename file: source=" + source + " target=" + target);
  }
  if (source == target) return Status::ok();
  if (names_.contains(target)) unlink(target);
  std::shared_ptr<SimFile> file = names_[source];
  name_changes_.push_back({NameChangeKind::kRename, source, target, file});
  files_[target] = std::move(files_[source]);
  files_.erase(source);
  names_.erase(source);
  names_[target] = file;
  file->name = target;
  return Status::ok();
}

std::vector<std::string> SimDiskState::list_files() {
  reconcile();
  std::vector<std::string> names;
  for (const auto& [name, file] : names_) names.push_back(name);
  return names;
}

Result<FileStat> SimDiskState::stat_file(const std::string& name) {
  reconcile();
  const auto entry = names_.find(name);
  if (entry == names_.end()) return failure(ENOENT, "cannot stat file: name=" + name);
  return FileStat{bytes_of(*entry->second).size(), entry->second->allocated_bytes()};
}

Result<FileStat> SimDiskState::stat_fd(int fd) {
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return failure(EBADF, "cannot stat file: fd=" + std::to_string(fd));
  return FileStat{bytes_of(*handle->file).size(), handle->file->allocated_bytes()};
}

void SimDiskState::sync_names() {
  reconcile();
  durable_names_ = names_;
  name_changes_.clear();
}

Status SimDiskState::lock(const std::string& name, const std::string& text, const void* holder) {
  reconcile();
  const auto held = locks_.find(name);
  if (held != locks_.end()) return Status(StatusCode::kBusy, held->second.text, EWOULDBLOCK);
  if (!names_.contains(name)) create_file(name);
  SimFile& file = *names_[name];
  file.resize(bytes_of(file), 0, ++change_sequence_);
  // On a full disk the lock is had without its text, as on a real one.
  static_cast<void>(store_bytes(file, 0, std::as_bytes(std::span(text))));
  locks_[name] = {holder, text};
  return Status::ok();
}

void SimDiskState::unlock(const void* holder) {
  std::erase_if(locks_, [holder](const auto& entry) { return entry.second.holder == holder; });
}

std::uint64_t SimDiskState::allocated_bytes() {
  reconcile();
  std::uint64_t total_bytes = 0;
  for (const auto& [name, file] : names_) total_bytes += file->allocated_bytes();
  // A removed file takes space until its last descriptor is closed.
  std::vector<const SimFile*> unlinked;
  for (const auto& [fd, handle] : handles_) {
    if (handle.file->name.empty()) unlinked.push_back(handle.file.get());
  }
  std::sort(unlinked.begin(), unlinked.end());
  unlinked.erase(std::unique(unlinked.begin(), unlinked.end()), unlinked.end());
  for (const SimFile* file : unlinked) total_bytes += file->allocated_bytes();
  return total_bytes;
}

std::uint64_t SimDiskState::free_bytes() {
  const std::uint64_t taken_bytes = allocated_bytes();
  return taken_bytes < capacity_bytes_ ? capacity_bytes_ - taken_bytes : 0;
}

Status SimDiskState::allocate(int fd, std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  const std::string text = "cannot allocate file: fd=" + std::to_string(fd) +
                           " offset_bytes=" + std::to_string(offset_bytes) +
                           " length_bytes=" + std::to_string(length_bytes);
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return failure(EBADF, text);
  if (length_bytes == 0) return failure(EINVAL, text);
  if (offset_bytes > kSimFileBytesMax || length_bytes > kSimFileBytesMax - offset_bytes) {
    return failure(EFBIG, text);
  }
  if (random_.is_hit(faults_.allocate_unsupported)) return failure(EOPNOTSUPP, text);
  SimFile& file = *handle->file;
  if (file.missing_bytes(offset_bytes, length_bytes) > free_bytes()) return failure(ENOSPC, text);
  std::vector<std::byte>& current = bytes_of(file);
  const std::uint64_t end_bytes = offset_bytes + length_bytes;
  if (end_bytes > current.size()) file.resize(current, end_bytes, ++change_sequence_);
  file.allocate(offset_bytes, length_bytes);
  return Status::ok();
}

Status SimDiskState::truncate(int fd, std::uint64_t length_bytes) {
  const std::string text = "cannot truncate file: fd=" + std::to_string(fd) +
                           " length_bytes=" + std::to_string(length_bytes);
  const Handle* handle = find_handle(fd);
  if (handle == nullptr) return failure(EBADF, text);
  if (length_bytes > kSimFileBytesMax) return failure(EFBIG, text);
  handle->file->resize(bytes_of(*handle->file), length_bytes, ++change_sequence_);
  return Status::ok();
}

TimeNs SimDiskState::op_duration_ns(TimeNs start_ns, const IoOp& op) {
  const auto latency_ns =
      static_cast<TimeNs>(random_.between(static_cast<std::uint64_t>(options_.latency_min_ns),
                                          static_cast<std::uint64_t>(options_.latency_max_ns)));
  const bool is_transfer = op.kind == IoKind::kRead || op.kind == IoKind::kWrite;
  if (!is_transfer) return latency_ns;
  // Transfers share the bandwidth: each waits for those that started before.
  const double bytes = static_cast<double>(op.length_bytes());
  const TimeNs transfer_ns = ns_from_s(bytes / options_.bytes_per_s);
  transfer_end_ns_ = std::max(transfer_end_ns_, start_ns) + transfer_ns;
  return transfer_end_ns_ - start_ns + latency_ns;
}

void SimDiskState::remove_queue(const SimIoQueue* queue) {
  std::erase_if(queues_, [queue](const auto& entry) { return entry.get() == queue; });
}

SimIoQueue* SimDiskState::queue_of_next_event(TimeNs& event_ns) const {
  SimIoQueue* first_queue = nullptr;
  std::uint64_t first_sequence = 0;
  event_ns = kNeverNs;
  for (const auto& queue : queues_) {
    const SimIoQueue::RunningOp* op = queue->next();
    if (op == nullptr) continue;
    const bool is_first = first_queue == nullptr || op->completion_ns < event_ns ||
                          (op->completion_ns == event_ns && op->sequence < first_sequence);
    if (!is_first) continue;
    first_queue = queue.get();
    event_ns = op->completion_ns;
    first_sequence = op->sequence;
  }
  return first_queue;
}

TimeNs SimDiskState::next_event_ns() const {
  if (is_stalled_) return kNeverNs;
  TimeNs event_ns = kNeverNs;
  queue_of_next_event(event_ns);
  return event_ns;
}

void SimDiskState::run_due() {
  while (!is_stalled_) {
    TimeNs event_ns = kNeverNs;
    SimIoQueue* queue = queue_of_next_event(event_ns);
    if (queue == nullptr || event_ns > clock_.now_ns()) return;
    queue->complete_next();
  }
}

}  // namespace kvtier::testing
