// The arithmetic of a disk on paper, in told time: rates, latency, depth, priorities.
#include "io/throttle_queue.h"

#include <doctest/doctest.h>

#include <array>

#include "io/io_engine_conformance.h"

namespace kvtier::testing {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class PaperDisk {
 public:
  explicit PaperDisk(const ThrottleOptions& options) : queue_(options) {}

  void push(IoKind kind, std::uint64_t length_bytes, IoPriority priority = IoPriority::kLoad) {
    IoOp op;
    op.kind = kind;
    op.priority = priority;
    op.fd = 3;
    op.user_data = num_pushed_++;
    if (length_bytes > 0) op.pieces = {std::span(kAnyAddress, length_bytes)};
    if (kind == IoKind::kTask) op.task = [] { return Status::ok(); };
    queue_.push(std::move(op));
  }

  /// The disk beneath ends everything at once.
  std::size_t start(TimeNs now_ns) {
    const std::vector<IoOp> ready = queue_.take_ready(now_ns);
    for (const IoOp& op : ready) queue_.finish({op.user_data, Status::ok(), op.length_bytes()});
    return ready.size();
  }

  /// The time at which everything pushed so far has ended.
  TimeNs run_all(TimeNs now_ns) {
    while (true) {
      start(now_ns);
      const TimeNs next_ns = queue_.next_due_ns();
      if (next_ns == kNeverNs) return now_ns;
      now_ns = next_ns;
      for (const IoResult& result : queue_.take_due(now_ns)) ended_.push_back(result.user_data);
    }
  }

  ThrottleQueue& queue() { return queue_; }
  const std::vector<std::uint64_t>& ended() const { return ended_; }

 private:
  // Never read: the queue only counts bytes.
  static inline std::byte* const kAnyAddress = reinterpret_cast<std::byte*>(4096);
  ThrottleQueue queue_;
  std::uint64_t num_pushed_ = 0;
  std::vector<std::uint64_t> ended_;
};

TEST_CASE("many reads at once take what their bytes take at the rate, and one latency") {
  PaperDisk disk({.read_bytes_per_s = 100 * kMiB, .latency_ns = 3 * kNsPerMs});
  for (int index = 0; index < 50; ++index) disk.push(IoKind::kRead, 2 * kMiB);
  CHECK(disk.run_all(kNsPerS) == kNsPerS + kNsPerS + 3 * kNsPerMs);
  CHECK(disk.ended().size() == 50);
}

TEST_CASE("one op at a time pays the latency each time") {
  PaperDisk disk(
      {.read_bytes_per_s = 100 * kMiB, .latency_ns = 5 * kNsPerMs, .queue_depth_max = 1});
  for (int index = 0; index < 10; ++index) disk.push(IoKind::kRead, kMiB);
  CHECK(disk.run_all(0) == 10 * (10 * kNsPerMs + 5 * kNsPerMs));
}

TEST_CASE("reads and writes have a rate each and do not wait for each other") {
  PaperDisk disk({.read_bytes_per_s = 100 * kMiB, .write_bytes_per_s = 50 * kMiB});
  for (int index = 0; index < 100; ++index) {
    disk.push(IoKind::kRead, kMiB);
    disk.push(IoKind::kWrite, kMiB, IoPriority::kSave);
  }
  CHECK(disk.run_all(0) == 2 * kNsPerS);
}

TEST_CASE("without limits nothing is held back") {
  PaperDisk disk({});
  for (int index = 0; index < 300; ++index) disk.push(IoKind::kWrite, kMiB, IoPriority::kSave);
  disk.push(IoKind::kSync, 0, IoPriority::kControl);
  CHECK(disk.start(17) == 301);
  CHECK(disk.queue().take_due(17).size() == 301);
  CHECK(disk.queue().next_due_ns() == kNeverNs);
}

TEST_CASE("an idle disk saves up nothing") {
  PaperDisk disk({.read_bytes_per_s = 100 * kMiB});
  disk.push(IoKind::kRead, kMiB);
  CHECK(disk.run_all(0) == 10 * kNsPerMs);
  disk.push(IoKind::kRead, kMiB);
  CHECK(disk.run_all(kNsPerS) == kNsPerS + 10 * kNsPerMs);
}

TEST_CASE("a load overtakes the saves that wait for a place") {
  PaperDisk disk({.write_bytes_per_s = 100 * kMiB, .queue_depth_max = 1});
  disk.push(IoKind::kWrite, kMiB, IoPriority::kSave);
  disk.push(IoKind::kWrite, kMiB, IoPriority::kSave);
  CHECK(disk.start(0) == 1);
  disk.push(IoKind::kRead, kMiB);
  disk.run_all(0);
  CHECK(disk.ended() == std::vector<std::uint64_t>{0, 2, 1});
}

TEST_CASE("tasks take no place and no time") {
  PaperDisk disk({.read_bytes_per_s = 1, .latency_ns = kNsPerS, .queue_depth_max = 1});
  disk.push(IoKind::kRead, kMiB);
  disk.push(IoKind::kTask, 0);
  CHECK(disk.start(5) == 2);
  const std::vector<IoResult> due = disk.queue().take_due(5);
  REQUIRE(due.size() == 1);
  CHECK(due.front().user_data == 1);
}

TEST_CASE("a result that comes late from beneath is given out as it comes") {
  ThrottleQueue queue({.latency_ns = kNsPerMs});
  IoOp op;
  op.fd = 3;
  op.user_data = 99;
  queue.push(std::move(op));
  const std::vector<IoOp> ready = queue.take_ready(0);
  REQUIRE(ready.size() == 1);
  CHECK(queue.next_due_ns() == kNeverNs);
  CHECK(queue.take_due(kNsPerS).empty());
  queue.finish({ready.front().user_data, Status::from_errno(EIO, "as asked"), 0});
  const std::vector<IoResult> due = queue.take_due(kNsPerS);
  REQUIRE(due.size() == 1);
  CHECK(due.front().user_data == 99);
  CHECK(due.front().status.os_errno() == EIO);
}

TEST_CASE("draining gives what ended and cancels what waits, each once") {
  PaperDisk disk({.latency_ns = kNsPerS, .queue_depth_max = 1});
  disk.push(IoKind::kRead, kMiB);
  disk.push(IoKind::kRead, kMiB);
  disk.start(0);
  const std::vector<IoResult> drained =
      disk.queue().drain(Status(StatusCode::kCancelled, "stopped"));
  REQUIRE(drained.size() == 2);
  CHECK(drained[0].status.is_ok());
  CHECK(drained[1].status.code() == StatusCode::kCancelled);
  CHECK(drained[1].user_data == 1);
}

TEST_CASE("a rate of one byte a second cannot overflow the clock") {
  PaperDisk disk({.read_bytes_per_s = 1});
  disk.push(IoKind::kRead, 1ull << 62);
  disk.start(0);
  CHECK(disk.queue().next_due_ns() > 0);
  CHECK(disk.queue().next_due_ns() < kNeverNs);
}

}  // namespace
}  // namespace kvtier::testing
