// What every IoEngine must do, run on each implementation by its own test file. Not thread-safe.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/directory.h"
#include "io/io_engine.h"
#include "testing/payload.h"

namespace kvtier::testing {

/// An engine with a directory for its files, and the passing of time.
class IoEngineWorld {
 public:
  virtual ~IoEngineWorld() = default;
  virtual Directory& directory() = 0;
  virtual IoEngine& engine() = 0;
  virtual TimeNs now_ns() = 0;
  /// False where unaligned direct I/O is let through (tmpfs).
  virtual bool is_alignment_checked() = 0;
  /// Blocks until something may have become pollable; false when nothing will.
  virtual bool let_time_pass() = 0;

  std::vector<IoResult> wait_for(std::size_t num_results) {
    std::vector<IoResult> results;
    engine().poll(results);
    while (results.size() < num_results && let_time_pass()) engine().poll(results);
    return results;
  }

  IoResult run(IoOp op) {
    std::vector<IoOp> ops;
    ops.push_back(std::move(op));
    const Status submitted = engine().submit(std::move(ops));
    REQUIRE_MESSAGE(submitted.is_ok(), submitted.to_string());
    std::vector<IoResult> results = wait_for(1);
    REQUIRE(results.size() == 1);
    return results.front();
  }

  int open(const std::string& name, bool is_direct = false) {
    Result<int> opened = directory().open_file(name, {.is_created = true, .is_direct = is_direct});
    REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
    return opened.value();
  }
};

using MakeIoEngineWorld = std::function<std::unique_ptr<IoEngineWorld>()>;

inline IoOp transfer_op(IoKind kind, int fd, std::uint64_t offset_bytes,
                        std::vector<std::span<std::byte>> pieces) {
  IoOp op;
  op.kind = kind;
  op.priority = kind == IoKind::kRead ? IoPriority::kLoad : IoPriority::kSave;
  op.fd = fd;
  op.offset_bytes = offset_bytes;
  op.pieces = std::move(pieces);
  return op;
}

/// Cuts `bytes` into pieces of uneven lengths, empty ones among them.
inline std::vector<std::span<std::byte>> cut(std::span<std::byte> bytes, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::span<std::byte>> pieces;
  while (!bytes.empty()) {
    const std::size_t taken = std::min<std::size_t>(bytes.size(), random.below(977));
    pieces.push_back(bytes.first(taken));
    bytes = bytes.subspan(taken);
  }
  return pieces;
}

inline void check_bytes_survive_other_cuts(IoEngineWorld& world) {
  const int fd = world.open("data");
  std::vector<std::byte> source = make_payload({1, 0}, 100'001);
  IoResult written = world.run(transfer_op(IoKind::kWrite, fd, 777, cut(source, 1)));
  REQUIRE_MESSAGE(written.status.is_ok(), written.status.to_string());
  CHECK(written.transferred_bytes == source.size());
  std::vector<std::byte> target(source.size());
  IoResult read = world.run(transfer_op(IoKind::kRead, fd, 777, cut(target, 2)));
  REQUIRE_MESSAGE(read.status.is_ok(), read.status.to_string());
  CHECK(read.transferred_bytes == source.size());
  CHECK(are_equal(source, target));
}

inline void check_direct_io(IoEngineWorld& world) {
  Result<int> opened =
      world.directory().open_file("direct", {.is_created = true, .is_direct = true});
  if (!opened.is_ok()) {
    CHECK(opened.status().code() == StatusCode::kUnsupported);
    MESSAGE("skipped: no direct I/O here");
    return;
  }
  AlignedBytes source(64 * 1024);
  fill_payload({2, 0}, 0, source.span());
  const auto halves = {source.span().first(16 * 1024), source.span().subspan(16 * 1024)};
  IoResult written = world.run(transfer_op(IoKind::kWrite, opened.value(), 8192, halves));
  REQUIRE_MESSAGE(written.status.is_ok(), written.status.to_string());
  AlignedBytes target(64 * 1024);
  IoResult read = world.run(transfer_op(IoKind::kRead, opened.value(), 8192, {target.span()}));
  REQUIRE_MESSAGE(read.status.is_ok(), read.status.to_string());
  CHECK(are_equal(source.span(), target.span()));
  if (!world.is_alignment_checked()) return;
  const auto shifted = source.span().subspan(1, 4096);
  IoResult unaligned = world.run(transfer_op(IoKind::kWrite, opened.value(), 7, {shifted}));
  CHECK(unaligned.status.os_errno() == EINVAL);
  CHECK(unaligned.transferred_bytes == 0);
}

inline void check_direct_read_ends_inside_a_page(IoEngineWorld& world) {
  const int fd = world.open("ragged");
  std::vector<std::byte> source = make_payload({3, 0}, 4096 + 700);
  REQUIRE(world.run(transfer_op(IoKind::kWrite, fd, 0, {source})).status.is_ok());
  Result<int> opened = world.directory().open_file("ragged", {.is_direct = true});
  if (!opened.is_ok()) return;
  AlignedBytes target(16 * 1024);
  IoResult read = world.run(transfer_op(IoKind::kRead, opened.value(), 0, {target.span()}));
  CHECK(read.status.code() == StatusCode::kIoError);
  CHECK(read.status.os_errno() == 0);
  CHECK(read.transferred_bytes == source.size());
  CHECK(are_equal(source, target.span().first(source.size())));
}

inline void check_every_op_ends_once(IoEngineWorld& world) {
  constexpr std::size_t kNumOps = 300;
  const int fd = world.open("many");
  std::vector<std::byte> source = make_payload({4, 0}, kNumOps * 100);
  std::vector<IoOp> ops;
  for (std::size_t index = 0; index < kNumOps; ++index) {
    IoOp op =
        transfer_op(IoKind::kWrite, fd, index * 100, {std::span(source).subspan(index * 100, 100)});
    op.priority = static_cast<IoPriority>(index % kNumIoPriorities);
    op.user_data = index;
    ops.push_back(std::move(op));
  }
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  std::set<std::uint64_t> seen;
  const std::vector<IoResult> results = world.wait_for(kNumOps);
  for (const IoResult& result : results) {
    CHECK(result.status.is_ok());
    CHECK(seen.insert(result.user_data).second);
  }
  CHECK(seen.size() == kNumOps);
  CHECK(world.engine().num_in_flight() == 0);
  std::vector<IoResult> more;
  CHECK(world.engine().poll(more) == 0);
  std::vector<std::byte> target(source.size());
  REQUIRE(world.run(transfer_op(IoKind::kRead, fd, 0, {target})).status.is_ok());
  CHECK(are_equal(source, target));
}

inline void check_early_end(IoEngineWorld& world) {
  const int fd = world.open("short");
  std::vector<std::byte> source = make_payload({5, 0}, 1000);
  REQUIRE(world.run(transfer_op(IoKind::kWrite, fd, 0, {source})).status.is_ok());
  std::vector<std::byte> target(900);
  IoResult read = world.run(transfer_op(IoKind::kRead, fd, 400, {target}));
  CHECK(read.status.code() == StatusCode::kIoError);
  CHECK(read.status.os_errno() == 0);
  CHECK(read.transferred_bytes == 600);
  CHECK(read.status.message().find("want_bytes=900 got_bytes=600") != std::string::npos);
  IoResult beyond = world.run(transfer_op(IoKind::kRead, fd, 5000, {target}));
  CHECK(beyond.status.code() == StatusCode::kIoError);
  CHECK(beyond.transferred_bytes == 0);
}

inline void check_bad_descriptor(IoEngineWorld& world) {
  const int fd = world.open("closed");
  world.directory().close_file(fd);
  std::vector<std::byte> bytes(16);
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite, IoKind::kSync}) {
    IoResult result = world.run(transfer_op(kind, fd, 0, {bytes}));
    CHECK(result.status.code() == StatusCode::kIoError);
    CHECK(result.status.os_errno() == EBADF);
  }
}

inline void check_refusals(IoEngineWorld& world) {
  std::vector<std::byte> bytes(16);
  const auto refused = [&](IoOp op) {
    std::vector<IoOp> ops;
    ops.push_back(transfer_op(IoKind::kSync, world.open("fine"), 0, {}));
    ops.push_back(std::move(op));
    return world.engine().submit(std::move(ops)).code();
  };
  CHECK(refused(transfer_op(IoKind::kRead, -1, 0, {bytes})) == StatusCode::kInvalidArgument);
  CHECK(refused(transfer_op(IoKind::kSync, -1, 0, {})) == StatusCode::kInvalidArgument);
  CHECK(refused(transfer_op(IoKind::kRead, 3, 1ull << 63, {})) == StatusCode::kInvalidArgument);
  CHECK(refused(transfer_op(IoKind::kRead, 3, INT64_MAX - 15, {bytes})) ==
        StatusCode::kInvalidArgument);
  CHECK(refused(transfer_op(IoKind::kRead, 3, 0,
                            {std::span<std::byte>(static_cast<std::byte*>(nullptr), 8)})) ==
        StatusCode::kInvalidArgument);
  IoOp task;
  task.kind = IoKind::kTask;
  CHECK(refused(std::move(task)) == StatusCode::kInvalidArgument);
  std::vector<IoOp> too_many(IoEngine::kQueuedOpsMax + 1, transfer_op(IoKind::kSync, 3, 0, {}));
  CHECK(world.engine().submit(std::move(too_many)).code() == StatusCode::kExhausted);
  // Of a refused batch nothing was taken, not even its good part.
  CHECK(world.engine().num_in_flight() == 0);
  CHECK(world.engine().submit({}).is_ok());
}

inline void check_tasks(IoEngineWorld& world) {
  auto num_runs = std::make_shared<int>(0);
  IoOp op;
  op.kind = IoKind::kTask;
  op.task = [num_runs] {
    ++*num_runs;
    return Status(StatusCode::kNoSpace, "as asked");
  };
  CHECK(world.run(op).status.code() == StatusCode::kNoSpace);
  CHECK(*num_runs == 1);
  op.task = [] { return Status::ok(); };
  CHECK(world.run(op).status.is_ok());
  op.task = []() -> Status { throw std::runtime_error("as asked"); };
  CHECK(world.run(std::move(op)).status.code() == StatusCode::kInternal);
}

inline void check_nothing_to_do(IoEngineWorld& world) {
  const int fd = world.open("empty");
  CHECK(world.run(transfer_op(IoKind::kSync, fd, 0, {})).status.is_ok());
  IoResult read = world.run(transfer_op(IoKind::kRead, fd, 10, {}));
  CHECK(read.status.is_ok());
  CHECK(read.transferred_bytes == 0);
  CHECK(world.run(transfer_op(IoKind::kWrite, fd, 10, {})).status.is_ok());
}

inline void check_stop(IoEngineWorld& world) {
  constexpr std::size_t kNumOps = 200;
  const int fd = world.open("stopped");
  std::vector<std::byte> source = make_payload({6, 0}, 4096);
  std::vector<IoOp> ops(kNumOps, transfer_op(IoKind::kWrite, fd, 0, {source}));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  CHECK(world.engine().stop(world.now_ns() + 30 * kNsPerS));
  CHECK(world.engine().stop(world.now_ns()));
  std::vector<IoResult> results;
  CHECK(world.engine().poll(results) == kNumOps);
  for (const IoResult& result : results) {
    const bool is_whole = result.status.is_ok() && result.transferred_bytes == source.size();
    const bool is_cancelled =
        result.status.code() == StatusCode::kCancelled && result.transferred_bytes == 0;
    CHECK((is_whole || is_cancelled));
  }
  CHECK(world.engine().num_in_flight() == 0);
  CHECK(world.engine().submit({transfer_op(IoKind::kSync, fd, 0, {})}).code() ==
        StatusCode::kClosed);
}

inline void check_io_engine_conformance(const MakeIoEngineWorld& make_world) {
  const std::unique_ptr<IoEngineWorld> world = make_world();
  CHECK(!world->engine().info().name.empty());
  CHECK(world->engine().info().queue_depth_max > 0);
  SUBCASE("bytes written in some pieces read back in others") {
    check_bytes_survive_other_cuts(*world);
  }
  SUBCASE("direct transfers move aligned pieces and refuse others") { check_direct_io(*world); }
  SUBCASE("a direct read of a file that ends inside a page says how far it came") {
    check_direct_read_ends_inside_a_page(*world);
  }
  SUBCASE("every op ends exactly once") { check_every_op_ends_once(*world); }
  SUBCASE("a file that ends early is an error with both numbers") { check_early_end(*world); }
  SUBCASE("a closed descriptor is an error of the op") { check_bad_descriptor(*world); }
  SUBCASE("a batch with one bad op is refused as a whole") { check_refusals(*world); }
  SUBCASE("a task's status is its result") { check_tasks(*world); }
  SUBCASE("ops without bytes are whole") { check_nothing_to_do(*world); }
  SUBCASE("stopping cancels what waits and refuses what comes") { check_stop(*world); }
}

}  // namespace kvtier::testing
