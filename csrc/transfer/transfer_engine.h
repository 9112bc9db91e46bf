// TransferEngine: moves blocks between an engine's paged tensors and host slots, after the right
// work of the engine's streams, hashed on the way. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"
#include "layout/paged_geometry.h"
#include "transfer/method_model.h"
#include "transfer/transfer_types.h"

namespace kvtier::transfer {

/// In a forked child an engine is of no use: calls answer kClosed, nothing or an end, take no
/// mutex, and destroying it gives nothing back.
class TransferEngine {
 public:
  /// `device` and `clock` outlive the engine; the clock is the system's when it has a thread.
  /// Measures the methods (below half a second) unless a calibration was kept. kConfig: an option
  /// out of range.
  static Result<std::unique_ptr<TransferEngine>> create(Device& device, Clock& clock,
                                                        const TransferOptions& options);
  /// As close() with the present as deadline, waiting about a second more for the thread. One that
  /// a call of the driver holds even then keeps the engine's insides, and needs the device: see
  /// has_stopped().
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Makes slots in this memory fast: page-locks it in pieces, all or none. The memory stays mapped
  /// until remove_host_memory() or close(). A refusal is a Status, and slots in it still work.
  Status add_host_memory(std::span<std::byte> memory);
  /// The same in the background, in smaller pieces between which transfers go on; the memory stays
  /// mapped likewise. Slots in it work at once, and the fast way when it is ready. Does not block.
  /// kBusy: this very memory is known already; kExhausted, kClosed, or why there is no thread.
  Status begin_host_memory(std::span<std::byte> memory);
  /// How far it is, of exactly the memory that was begun.
  HostMemoryInfo host_memory_info(std::span<std::byte> memory) const;
  /// For memory that somebody page-locked already, at the same address for the device's kernels.
  void add_page_locked_memory(std::span<std::byte> memory);
  /// Requires: no job in flight uses it. Unlocks what add_host_memory() or begin_host_memory()
  /// locked, and waits for a piece of it that is just being locked.
  void remove_host_memory(std::span<std::byte> memory);

  /// Makes an engine's tensors known. They stay allocated until detach(). kInvalidArgument: see
  /// layout::make_fragment_table(); a tensor that is not this device's.
  Result<AttachmentId> attach(std::span<const layout::TensorPlace> tensors,
                              std::span<const layout::FragmentPlace> fragments,
                              std::span<const std::uint64_t> part_bytes);
  /// kBusy while jobs use it.
  Status detach(AttachmentId attachment_id);

  /// The point in the caller's stream that is after all its work so far, for jobs that are
  /// submitted later. In the calling thread, whose default stream may be meant. The point may
  /// outlive the engine, not the device. kInvalidArgument: not a stream of this device, or one that
  /// is being captured; kExhausted, kClosed, or the device's failure.
  Result<std::shared_ptr<const ReadyPoint>> record_ready(StreamId stream);
  /// Starts a save or a load after `request.ready`, or after what is on `request.stream` by now.
  /// Ownership: device blocks and slots belong to the job until its end was seen by poll(), wait(),
  /// order_stream_after() or `request.on_result`. The request's own arrays are copied.
  /// Does not block. Returns kInvalidArgument (block id out of range, lengths that differ, a stream
  /// or ready point of another device), kExhausted (num_jobs_max), kClosed, or the device's
  /// failure.
  Result<TransferJobId> submit(const TransferRequest& request);
  /// Asks a job to end early; its result still comes, and only then are its buffers free. What was
  /// done by then stays done. Unknown jobs are ignored.
  void cancel(TransferJobId job_id);
  /// Whether the job has ended, by `deadline_ns`. The result stays for poll() or take(), or is on
  /// its way to on_result.
  bool wait(TransferJobId job_id, TimeNs deadline_ns);
  /// Orders work that is put on `stream` from now on after the job's last byte. Blocks until the
  /// engine's thread has told the device of it: kTimeout at `deadline_ns`. Whether the bytes of a
  /// load are right is known only by its result. kNotFound: no such job, or one that ended and gave
  /// its result to on_result.
  Status order_stream_after(TransferJobId job_id, StreamId stream, TimeNs deadline_ns);
  /// Appends the results of jobs that ended; each is given once. Does not block.
  void poll(std::vector<TransferResult>& results);
  /// The result of one job that ended, once. kBusy: it has not; kNotFound.
  Result<TransferResult> take(TransferJobId job_id);

  /// Cancels all jobs and waits for those in flight, then about a second at most for its threads.
  /// False: a thread is held by the driver, or some jobs had not ended by `deadline_ns`, and their
  /// buffers belong to the device until they do, or until it is destroyed. They are still looked
  /// after, by the thread or by whoever drives advance(), and close() can be asked again.
  bool close(TimeNs deadline_ns);
  /// Whether the engine was closed, nothing of it is in flight and its thread has left. A caller
  /// that destroys an engine that has not stopped must never destroy its device.
  bool has_stopped() const;

  /// Does what can be done without blocking; returns when it wants to run again (kNeverNs: after a
  /// submit). For an engine without a thread.
  TimeNs advance();

  TransferStats stats() const;
  DeviceInfo device_info() const;
  /// Why something is less than best; empty when nothing is.
  std::string note() const;
  /// What the model expects, and its exchange: for the calibration.
  MethodModel model() const;
  void set_model(const MethodModel& model);

 private:
  class Impl;
  explicit TransferEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier::transfer
