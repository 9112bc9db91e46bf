// DiskEngine: carries out plans on segment files: blocks, table pages, creation, removal, sync.
// Decides nothing. Not thread-safe: its owner locks; only the IoEngine beneath has threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "format/segment_header.h"
#include "io/directory.h"
#include "io/io_engine.h"
#include "memory/aligned_buffer.h"

namespace kvtier::disk {

using DiskJobId = std::uint64_t;

struct DiskResult {
  DiskJobId job_id = 0;
  Status status;
  /// create_segment: bytes that the new file allocated. remove_segment that failed: 1 when the file
  /// that stayed was voided.
  std::uint64_t value = 0;
};

struct DiskEngineOptions {
  bool is_direct = true;
  /// Descriptors of segment files open at once, new files aside; more segments take turns.
  std::uint32_t open_files_max = 128;
};

class DiskEngine {
 public:
  /// `directory` and `io_engine` outlive it.
  DiskEngine(Directory& directory, IoEngine& io_engine, Clock& clock,
             const DiskEngineOptions& options);
  ~DiskEngine();
  DiskEngine(const DiskEngine&) = delete;
  DiskEngine& operator=(const DiskEngine&) = delete;

  /// Makes an existing file known. It is opened at its first use.
  void add_segment(const format::SegmentHeader& header);
  /// Makes the file: reserved space where the file system can, header, all durable. Until its
  /// result is polled the segment takes no other job. On failure nothing is left of it.
  DiskJobId create_segment(const format::SegmentHeader& header);
  /// Removes the file durably. Requires that no other job of the segment is running.
  DiskJobId remove_segment(std::uint32_t segment_id);

  /// `buffer`: aligned for direct I/O, whole alignment units, at most a slot. It belongs to the
  /// engine until the result was polled. A failed read is tried once more before it fails.
  DiskJobId read_block(std::uint32_t segment_id, std::uint32_t slot_index,
                       std::span<std::byte> buffer);
  DiskJobId write_block(std::uint32_t segment_id, std::uint32_t slot_index,
                        std::span<std::byte> buffer);
  /// Copies `pages`: whole table pages from `page_index` on.
  DiskJobId write_table_pages(std::uint32_t segment_id, std::uint64_t page_index,
                              std::span<const std::byte> pages);
  DiskJobId sync_segment(std::uint32_t segment_id);
  DiskJobId run_task(std::function<Status()> task);
  /// As run_task, for what does not matter: however long it takes says nothing of the device.
  DiskJobId run_aside(std::function<Status()> task);

  /// Hands the ops of new jobs to the IoEngine, together, so that it can join neighbours. Whoever
  /// starts jobs calls it before waiting for them.
  void submit();
  /// Submits, then appends the results of jobs that ended. Does not block.
  void poll(std::vector<DiskResult>& results);

  /// When the oldest unfinished transfer of blocks or table pages was submitted; kNeverNs: none.
  TimeNs oldest_transfer_start_ns() const;
  /// The same of all other jobs, but for those of run_aside.
  TimeNs oldest_other_start_ns() const {
    return other_jobs_.empty() ? kNeverNs : jobs_.at(*other_jobs_.begin()).start_ns;
  }
  /// When a job last ended that the device took part in; 0: none has. Tasks and the opening of
  /// files do not count: they may end in the kernel's caches.
  TimeNs last_result_ns() const { return last_result_ns_; }
  std::size_t num_jobs() const { return jobs_.size(); }
  std::size_t num_jobs_of(std::uint32_t segment_id) const;
  /// False when direct I/O was not asked for, or was given up: an op that the device refuses as
  /// direct I/O (EINVAL) is done once more through the page cache, and after kDirectRefusalsMax of
  /// these that worked all others are too, for the life of this engine.
  bool is_direct() const { return is_direct_; }
  static constexpr std::uint32_t kDirectRefusalsMax = 3;
  /// See IoEngine::stop. Results of ended jobs can still be polled.
  bool stop(TimeNs deadline_ns);
  /// Forgets all segments and their descriptors. Requires that no job is running.
  void forget_segments();

 private:
  enum class JobKind : std::uint8_t {
    kRead,
    kWrite,
    kTable,
    kSync,
    kCreate,
    kRemove,
    kOpen,
    kTask
  };
  static bool is_transfer(JobKind kind) {
    return kind == JobKind::kRead || kind == JobKind::kWrite || kind == JobKind::kTable;
  }
  /// What a task found out, read when its result is polled.
  struct Created {
    int fd = -1;
    std::uint64_t allocated_bytes = 0;
    bool is_void = false;    // kRemove.
    bool is_direct = false;  // `fd` is.
  };
  struct Job {
    JobKind kind = JobKind::kTask;
    std::uint32_t segment_id = 0;
    TimeNs start_ns = 0;
    bool is_aside = false;
    bool is_retried = false;
    bool is_buffered = false;  // On its way through the page cache, after a refusal.
    std::span<std::byte> buffer;
    std::uint64_t offset_bytes = 0;
    AlignedBuffer owned;               // kTable.
    std::shared_ptr<Created> created;  // kCreate, kOpen.
  };
  struct File {
    format::SegmentHeader header;
    int fd = -1;
    bool is_direct = false;  // `fd` is.
    bool is_opening = false;
    std::uint32_t num_jobs = 0;
    std::uint64_t last_use = 0;
    std::vector<DiskJobId> waiting;  // For the descriptor.
  };

  DiskJobId add_job(Job job);
  /// Adds the job of a segment and starts it.
  DiskJobId start_new(Job job);
  DiskJobId transfer_block(JobKind kind, std::uint32_t segment_id, std::uint32_t slot_index,
                           std::span<std::byte> buffer);
  /// Sends the job to the IoEngine, or to the line of its file while that is being opened.
  void start(DiskJobId job_id);
  void send(DiskJobId job_id, int fd);
  void send_buffered(DiskJobId job_id);
  bool is_refused_as_direct(const Job& job, const Status& status) const;
  void note_buffered_success();
  void send_task(DiskJobId job_id, std::function<Status()> task);
  void open_file(File& file);
  void finish_open(Job& job, const Status& status);
  void finish(DiskJobId job_id, const Status& status, std::vector<DiskResult>& results);
  void fail_later(DiskJobId job_id, Status status);
  void open_files();
  bool close_idle_file();

  // Constant after construction.
  Directory& directory_;
  IoEngine& io_engine_;
  Clock& clock_;
  const DiskEngineOptions options_;
  // Guarded by the owner's mutex.
  std::map<DiskJobId, Job> jobs_;   // Ids rise: the first is the oldest.
  std::set<DiskJobId> other_jobs_;  // Of those, what oldest_other_start_ns() tells of.
  std::unordered_map<std::uint32_t, File> files_;
  std::vector<IoOp> ops_to_submit_;
  std::vector<DiskResult> early_results_;  // Of jobs that failed at submission.
  DiskJobId job_id_next_ = 1;
  std::uint64_t use_counter_ = 0;
  std::size_t num_open_ = 0;
  TimeNs last_result_ns_ = 0;
  std::size_t num_opening_ = 0;
  bool is_direct_ = false;
  std::uint32_t num_direct_refusals_ = 0;
  std::deque<std::uint32_t> to_open_;  // Segments whose jobs wait for a descriptor.
};

}  // namespace kvtier::disk
