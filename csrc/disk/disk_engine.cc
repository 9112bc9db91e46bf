// Plans on segment files, carried out by the IoEngine. Its owner locks.
#include "disk/disk_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "disk/segment_file.h"

namespace kvtier::disk {
DiskEngine::DiskEngine(Directory& directory, IoEngine& io_engine, Clock& clock,
                       const DiskEngineOptions& options)
    : directory_(directory),
      io_engine_(io_engine),
      clock_(clock),
      options_(options),
      is_direct_(options.is_direct) {}

DiskEngine::~DiskEngine() {
  // Jobs that the kernel still holds keep their descriptor open; it ends with the process.
  for (auto& [segment_id, file] : files_) {
    if (file.fd >= 0 && file.num_jobs == 0) directory_.close_file(file.fd);
  }
}

void DiskEngine::add_segment(const format::SegmentHeader& header) {
  const bool is_new =
      files_.emplace(header.segment_id, File{header, -1, false, false, 0, 0, {}}).second;
  KVTIER_CHECK(is_new);
}

DiskJobId DiskEngine::create_segment(const format::SegmentHeader& header) {
  Job job;
  job.kind = JobKind::kCreate;
  job.segment_id = header.segment_id;
  job.created = std::make_shared<Created>();
  auto created = job.created;
  add_segment(header);
  ++files_.at(header.segment_id).num_jobs;
  const DiskJobId job_id = add_job(std::move(job));
  send_task(job_id, [&directory = directory_, header, created, is_direct = is_direct_] {
    auto made = create_segment_file(directory, header, is_direct);
    if (!made.is_ok()) return made.status();
    created->fd = made.value().fd;
    created->is_direct = is_direct;
    created->allocated_bytes = made.value().allocated_bytes;
    return Status::ok();
  });
  return job_id;
}

DiskJobId DiskEngine::remove_segment(std::uint32_t segment_id) {
  File& file = files_.at(segment_id);
  KVTIER_CHECK(file.num_jobs == 0);
  if (file.fd >= 0) {
    directory_.close_file(file.fd);
    --num_open_;
  }
  files_.erase(segment_id);
  Job job;
  job.kind = JobKind::kRemove;
  job.segment_id = segment_id;
  job.created = std::make_shared<Created>();
  auto outcome = job.created;
  const DiskJobId job_id = add_job(std::move(job));
  send_task(job_id, [&directory = directory_, segment_id, outcome] {
    const std::string name = format::segment_file_name(segment_id);
    return remove_segment_file(directory, name, outcome->is_void);
  });
  return job_id;
}

DiskJobId DiskEngine::read_block(std::uint32_t segment_id, std::uint32_t slot_index,
                                 std::span<std::byte> buffer) {
  return transfer_block(JobKind::kRead, segment_id, slot_index, buffer);
}

DiskJobId DiskEngine::write_block(std::uint32_t segment_id, std::uint32_t slot_index,
                                  std::span<std::byte> buffer) {
  return transfer_block(JobKind::kWrite, segment_id, slot_index, buffer);
}

DiskJobId DiskEngine::transfer_block(JobKind kind, std::uint32_t segment_id,
                                     std::uint32_t slot_index, std::span<std::byte> buffer) {
  Job job;
  job.kind = kind;
  job.segment_id = segment_id;
  job.buffer = buffer;
  job.offset_bytes = files_.at(segment_id).header.slot_offset_bytes(slot_index);
  return start_new(std::move(job));
}

DiskJobId DiskEngine::write_table_pages(std::uint32_t segment_id, std::uint64_t page_index,
                                        std::span<const std::byte> pages) {
  KVTIER_CHECK(pages.size() % format::kTablePageBytes == 0);
  AlignedBuffer copy = make_aligned_buffer(pages.size());
  std::memcpy(copy.get(), pages.data(), pages.size());
  Job job;
  job.kind = JobKind::kTable;
  job.segment_id = segment_id;
  job.buffer = {copy.get(), pages.size()};
  job.owned = std::move(copy);
  job.offset_bytes =
      files_.at(segment_id).header.table_offset_bytes + page_index * format::kTablePageBytes;
  return start_new(std::move(job));
}

DiskJobId DiskEngine::sync_segment(std::uint32_t segment_id) {
  Job job;
  job.kind = JobKind::kSync;
  job.segment_id = segment_id;
  return start_new(std::move(job));
}

DiskJobId DiskEngine::run_task(std::function<Status()> task) {
  const DiskJobId job_id = add_job(Job{});
  send_task(job_id, std::move(task));
  return job_id;
}

DiskJobId DiskEngine::run_aside(std::function<Status()> task) {
  Job job;
  job.is_aside = true;
  const DiskJobId job_id = add_job(std::move(job));
  send_task(job_id, std::move(task));
  return job_id;
}

void DiskEngine::poll(std::vector<DiskResult>& results) {
  submit();
  std::vector<IoResult> io_results;
  io_engine_.poll(io_results);
  for (const IoResult& io_result : io_results) {
    // These may have ended in the kernel's caches, as a look at the directory does while the device
    // hangs.
    const JobKind kind = jobs_.at(io_result.user_data).kind;
    if (kind != JobKind::kTask && kind != JobKind::kOpen) last_result_ns_ = clock_.now_ns();
    finish(io_result.user_data, io_result.status, results);
  }
  while (!early_results_.empty()) {
    const std::vector<DiskResult> early = std::exchange(early_results_, {});
    for (const DiskResult& result : early) finish(result.job_id, result.status, results);
  }
  while (num_open_ > options_.open_files_max && close_idle_file()) {
  }
  open_files();
  submit();
}

TimeNs DiskEngine::oldest_transfer_start_ns() const {
  // Few others stand before it.
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [](const auto& job) { return is_transfer(job.second.kind); });
  return found == jobs_.end() ? kNeverNs : found->second.start_ns;
}

std::size_t DiskEngine::num_jobs_of(std::uint32_t segment_id) const {
  const auto found = files_.find(segment_id);
  return found == files_.end() ? 0 : found->second.num_jobs;
}

bool DiskEngine::stop(TimeNs deadline_ns) { return io_engine_.stop(deadline_ns); }

void DiskEngine::forget_segments() {
  KVTIER_CHECK(jobs_.empty());
  for (auto& [segment_id, file] : files_) {
    if (file.fd >= 0) directory_.close_file(file.fd);
  }
  files_.clear();
  num_open_ = 0;
}

DiskJobId DiskEngine::add_job(Job job) {
  job.start_ns = clock_.now_ns();
  const DiskJobId job_id = job_id_next_++;
  if (!is_transfer(job.kind) && !job.is_aside) other_jobs_.insert(job_id);
  jobs_.emplace(job_id, std::move(job));
  return job_id;
}

DiskJobId DiskEngine::start_new(Job job) {
  const DiskJobId job_id = add_job(std::move(job));
  start(job_id);
  return job_id;
}

void DiskEngine::start(DiskJobId job_id) {
  File& file = files_.at(jobs_.at(job_id).segment_id);
  if (file.fd >= 0 && file.is_direct && !is_direct_ && file.num_jobs == 0) {
    // Opened before direct I/O was given up.
    directory_.close_file(std::exchange(file.fd, -1));
    --num_open_;
  }
  ++file.num_jobs;
  file.last_use = ++use_counter_;
  if (file.fd >= 0) {
    send(job_id, file.fd);
    return;
  }
  file.waiting.push_back(job_id);
  if (file.is_opening) return;
  file.is_opening = true;
  to_open_.push_back(file.header.segment_id);
  open_files();
}

/// Opens files in order of need, as far as descriptors go; files without jobs give theirs up.
void DiskEngine::open_files() {
  while (!to_open_.empty()) {
    const bool is_full = num_open_ + num_opening_ >= options_.open_files_max;
    if (is_full && !close_idle_file() && num_open_ + num_opening_ > 0) return;
    open_file(files_.at(to_open_.front()));
    to_open_.pop_front();
  }
}

void DiskEngine::send(DiskJobId job_id, int fd) {
  const Job& job = jobs_.at(job_id);
  if (files_.at(job.segment_id).is_direct && !is_direct_ && job.kind != JobKind::kSync) {
    return send_buffered(job_id);
  }
  IoOp op;
  op.fd = fd;
  op.offset_bytes = job.offset_bytes;
  op.user_data = job_id;
  if (!job.buffer.empty()) op.pieces.push_back(job.buffer);
  switch (job.kind) {
    case JobKind::kRead:
      op.kind = IoKind::kRead;
      op.priority = IoPriority::kLoad;
      break;
    case JobKind::kWrite:
      op.kind = IoKind::kWrite;
      op.priority = IoPriority::kSave;
      break;
    case JobKind::kTable:
      op.kind = IoKind::kWrite;
      op.priority = IoPriority::kControl;
      break;
    default:
      op.kind = IoKind::kSync;
      op.priority = IoPriority::kControl;
      break;
  }
  ops_to_submit_.push_back(std::move(op));
}

void DiskEngine::send_task(DiskJobId job_id, std::function<Status()> task) {
  IoOp op;
  op.kind = IoKind::kTask;
  op.priority = IoPriority::kControl;
  op.task = std::move(task);
  op.user_data = job_id;
  ops_to_submit_.push_back(std::move(op));
}

/// Rare and slow: opens the file anew for this one op.
void DiskEngine::send_buffered(DiskJobId job_id) {
  Job& job = jobs_.at(job_id);
  job.is_buffered = true;
  const std::string name = format::segment_file_name(job.segment_id);
  send_task(job_id, [&directory = directory_, name, is_read = job.kind == JobKind::kRead,
                     offset_bytes = job.offset_bytes, buffer = job.buffer] {
    auto opened = directory.open_file(name, OpenFlags{false, false, false});
    if (!opened.is_ok()) return opened.status();
    Status moved = is_read ? directory.read_at(opened.value(), offset_bytes, buffer)
                           : directory.write_at(opened.value(), offset_bytes, buffer);
    directory.close_file(opened.value());
    return moved;
  });
}

bool DiskEngine::is_refused_as_direct(const Job& job, const Status& status) const {
  const bool is_transfer =
      job.kind == JobKind::kRead || job.kind == JobKind::kWrite || job.kind == JobKind::kTable;
  return is_transfer && !job.is_buffered && status.os_errno() == EINVAL &&
         files_.at(job.segment_id).is_direct;
}

void DiskEngine::note_buffered_success() {
  if (++num_direct_refusals_ >= kDirectRefusalsMax) is_direct_ = false;
}

void DiskEngine::submit() {
  if (ops_to_submit_.empty()) return;
  std::vector<DiskJobId> job_ids;
  job_ids.reserve(ops_to_submit_.size());
  for (const IoOp& op : ops_to_submit_) job_ids.push_back(op.user_data);
  const Status submitted = io_engine_.submit(std::exchange(ops_to_submit_, {}));
  if (submitted.is_ok()) return;
  for (const DiskJobId job_id : job_ids) fail_later(job_id, submitted);
}

void DiskEngine::open_file(File& file) {
  ++num_opening_;
  Job job;
  job.kind = JobKind::kOpen;
  job.segment_id = file.header.segment_id;
  job.created = std::make_shared<Created>();
  auto created = job.created;
  const std::string name = format::segment_file_name(file.header.segment_id);
  const DiskJobId job_id = add_job(std::move(job));
  send_task(job_id, [&directory = directory_, name, created, is_direct = is_direct_] {
    auto opened = directory.open_file(name, OpenFlags{false, false, is_direct});
    if (!opened.is_ok()) return opened.status();
    created->fd = opened.value();
    created->is_direct = is_direct;
    return Status::ok();
  });
}

void DiskEngine::finish_open(Job& job, const Status& status) {
  const auto found = files_.find(job.segment_id);
  KVTIER_CHECK(found != files_.end());
  File& file = found->second;
  file.is_opening = false;
  --num_opening_;
  const std::vector<DiskJobId> waiting = std::move(file.waiting);
  file.waiting.clear();
  if (status.is_ok()) {
    file.fd = job.created->fd;
    file.is_direct = job.created->is_direct;
    ++num_open_;
  }
  for (const DiskJobId job_id : waiting) {
    if (status.is_ok()) {
      send(job_id, file.fd);
    } else {
      fail_later(job_id, status);
    }
  }
}

void DiskEngine::finish(DiskJobId job_id, const Status& status, std::vector<DiskResult>& results) {
  const auto found = jobs_.find(job_id);
  KVTIER_CHECK(found != jobs_.end());  // Every completion is consumed exactly once.
  Job& job = found->second;
  if (job.kind == JobKind::kOpen) {
    Job opened = std::move(job);
    jobs_.erase(found);
    other_jobs_.erase(job_id);
    finish_open(opened, status);
    return;
  }
  if (is_refused_as_direct(job, status)) return send_buffered(job_id);
  if (job.is_buffered && status.is_ok() && is_direct_) note_buffered_success();
  const bool is_retryable = status.code() == StatusCode::kIoError && job.kind == JobKind::kRead;
  if (is_retryable && !job.is_retried && files_.at(job.segment_id).fd >= 0) {
    job.is_retried = true;
    send(job_id, files_.at(job.segment_id).fd);
    return;
  }
  DiskResult result{job_id, status, 0};
  const bool is_of_segment = job.kind != JobKind::kTask;
  if (!status.is_ok() && is_of_segment) {
    result.status =
        Status(status.code(), format::segment_file_name(job.segment_id) + ": " + status.message(),
               status.os_errno());
  }
  if (job.kind == JobKind::kRemove && job.created->is_void) result.value = 1;
  const auto file = files_.find(job.segment_id);
  const bool is_of_file = job.kind != JobKind::kTask && job.kind != JobKind::kRemove;
  if (is_of_file && file != files_.end()) {
    --file->second.num_jobs;
    if (job.kind == JobKind::kCreate) {
      if (status.is_ok()) {
        file->second.fd = job.created->fd;
        file->second.is_direct = job.created->is_direct;
        ++num_open_;
        result.value = job.created->allocated_bytes;
      } else {
        files_.erase(file);
      }
    }
  }
  jobs_.erase(found);
  other_jobs_.erase(job_id);
  results.push_back(std::move(result));
}

void DiskEngine::fail_later(DiskJobId job_id, Status status) {
  early_results_.push_back(DiskResult{job_id, std::move(status), 0});
}

/// The one that was used longest ago; false: all are in use.
bool DiskEngine::close_idle_file() {
  File* oldest = nullptr;
  for (auto& [segment_id, file] : files_) {
    if (file.fd < 0 || file.num_jobs > 0) continue;
    if (oldest == nullptr || file.last_use < oldest->last_use) oldest = &file;
  }
  if (oldest == nullptr) return false;
  directory_.close_file(std::exchange(oldest->fd, -1));
  --num_open_;
  return true;
}

}  // namespace kvtier::disk
