// Page-locking in the background: piece by piece, with roll-back, while transfers go on.
#include "transfer/host_memory_locker.h"

#include <doctest/doctest.h>

#include <atomic>
#include <utility>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::HostMemoryLocker;
using transfer::HostMemoryState;
using transfer::PageLockedRanges;
using transfer::TransferJobId;

/// A locker that is driven, over pieces of a hundred bytes.
struct LockerWorld {
  SimClock clock;
  HostDevice host{clock};
  PageLockedRanges ranges{host};
  HostMemoryLocker locker{host, ranges, false, 100};
  std::vector<std::byte> memory = std::vector<std::byte>(1000);
};

TEST_CASE("memory is locked a piece at a time, one after the other, and is a range at the end") {
  LockerWorld world;
  const auto first = std::span(world.memory).first(250);
  const auto second = std::span(world.memory).subspan(300, 100);
  REQUIRE(world.locker.begin(first).is_ok());
  REQUIRE(world.locker.begin(second).is_ok());
  CHECK(world.locker.begin(first).code() == StatusCode::kBusy);
  CHECK(world.locker.pending_bytes() == 350);
  CHECK(world.host.page_locked_bytes() == 0);
  for (const std::uint64_t locked_bytes : {100u, 200u}) {
    CHECK(world.locker.advance());
    CHECK(world.locker.info(first).state == HostMemoryState::kPending);
    CHECK(world.locker.info(first).locked_bytes == locked_bytes);
    CHECK_FALSE(world.ranges.contains(first.data(), 1));
  }
  CHECK(world.locker.advance());
  CHECK(world.locker.info(first).state == HostMemoryState::kReady);
  CHECK(world.ranges.contains(first.data(), 250));
  CHECK(world.locker.info(second).state == HostMemoryState::kPending);
  CHECK_FALSE(world.locker.advance());
  CHECK(world.locker.info(second).state == HostMemoryState::kReady);
  CHECK_FALSE(world.locker.advance());
  CHECK(world.host.page_locked_bytes() == 350);
  CHECK(world.locker.info(std::span(world.memory)).state == HostMemoryState::kUnknown);
  // What is ready is the ranges'.
  CHECK_FALSE(world.locker.drop(first));
  CHECK(world.ranges.contains(first.data(), 250));
  CHECK(world.locker.info(first).state == HostMemoryState::kUnknown);
}

TEST_CASE("a piece that is refused takes the pieces before it along, and the reason is kept") {
  LockerWorld world;
  const auto memory = std::span(world.memory);
  world.host.set_page_lock_limit_bytes(250);
  REQUIRE(world.locker.begin(memory).is_ok());
  REQUIRE(world.locker.begin(memory.first(200)).is_ok());
  while (world.locker.advance()) {
  }
  const auto info = world.locker.info(memory);
  CHECK(info.state == HostMemoryState::kRefused);
  CHECK(info.locked_bytes == 0);
  CHECK(info.refusal.message().find("locked_bytes=200 need_bytes=1000") != std::string::npos);
  CHECK(world.locker.note() == info.refusal.message());
  // The next is not spoilt by it.
  CHECK(world.locker.info(memory.first(200)).state == HostMemoryState::kReady);
  CHECK(world.host.page_locked_bytes() == 200);
  CHECK(world.locker.drop(memory));
  CHECK(world.locker.note().empty());
}

TEST_CASE("memory that is dropped or left half-way is unlocked") {
  LockerWorld world;
  const auto memory = std::span(world.memory);
  REQUIRE(world.locker.begin(memory).is_ok());
  REQUIRE(world.locker.begin(memory.first(300)).is_ok());
  world.locker.advance();
  CHECK(world.host.page_locked_bytes() == 100);
  CHECK(world.locker.drop(memory));
  CHECK(world.host.page_locked_bytes() == 0);
  world.locker.advance();
  CHECK(world.host.page_locked_bytes() == 100);
  CHECK(world.locker.stop(world.clock, 0));
  CHECK(world.host.page_locked_bytes() == 0);
  CHECK_FALSE(world.locker.advance());
  CHECK(world.locker.begin(memory).code() == StatusCode::kClosed);
}

TEST_CASE("transfers go on while memory is being locked, and take the fast way after it") {
  TransferWorld world(kPlainShape, {16, 16, 64 << 10, false, true});
  REQUIRE(world.engine->begin_host_memory(world.arena).is_ok());
  CHECK(world.engine->stats().page_lock_pending_bytes == world.arena.size());
  world.write_block(3, world.payload(1));
  // Submitted before the first piece is locked.
  const TransferJobId early = world.submit(kSave, {{3, 5, 1}});
  world.settle();
  CHECK(world.take(early).status.is_ok());
  CHECK(are_equal(world.slot(5), world.payload(1)));
  CHECK(world.engine->stats().bounced_bytes == world.shape.block_bytes());
  CHECK(world.engine->host_memory_info(world.arena).state == HostMemoryState::kReady);
  CHECK(world.engine->stats().page_locked_bytes == world.arena.size());
  const TransferJobId late = world.submit(kSave, {{3, 6, 1}});
  world.settle();
  CHECK(world.take(late).status.is_ok());
  CHECK(are_equal(world.slot(6), world.payload(1)));
  CHECK(world.engine->stats().bounced_bytes == world.shape.block_bytes());
  const std::uint64_t own_bytes = world.host.page_locked_bytes() - world.arena.size();
  world.engine->remove_host_memory(world.arena);
  CHECK(world.host.page_locked_bytes() == own_bytes);
  CHECK(world.engine->host_memory_info(world.arena).state == HostMemoryState::kUnknown);
}

TEST_CASE("memory that is refused in the background is served through the ring, and that is said") {
  TransferWorld world(kPlainShape, {16, 16, 64 << 10, false, true});
  world.host.set_page_lock_limit_bytes(0);
  REQUIRE(world.engine->begin_host_memory(world.arena).is_ok());
  world.settle();
  CHECK(world.engine->host_memory_info(world.arena).state == HostMemoryState::kRefused);
  CHECK(world.engine->note().find("cannot page-lock memory") != std::string::npos);
  world.write_block(3, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{3, 5, 1}});
  world.settle();
  CHECK(world.take(job_id).status.is_ok());
  CHECK(are_equal(world.slot(5), world.payload(1)));
  world.engine->remove_host_memory(world.arena);
  CHECK(world.engine->note().find("cannot page-lock memory") == std::string::npos);
}

TEST_CASE("a thread locks memory by itself, is waited for by who removes it, and can be left") {
  SystemClock clock;
  HostDevice host(clock);
  DeviceDouble device(host);
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_go{false};
  device.on_call = [&](DeviceCall call) {
    if (call == DeviceCall::kPageLock) {
      is_inside = true;
      is_inside.notify_all();
      may_go.wait(false);
    }
    return Status::ok();
  };
  std::vector<std::byte> memory(8192);
  transfer::TransferOptions options;
  options.is_calibrated = false;
  auto engine = std::move(transfer::TransferEngine::create(device, clock, options)).value();
  REQUIRE(engine->begin_host_memory(memory).is_ok());
  is_inside.wait(false);
  CHECK(engine->host_memory_info(memory).state == HostMemoryState::kPending);
  // The driver holds the thread; the engine says so in time, and can be asked again.
  CHECK_FALSE(engine->close(clock.now_ns()));
  CHECK_FALSE(engine->has_stopped());
  may_go = true;
  may_go.notify_all();
  CHECK(engine->close(clock.now_ns() + 10 * kNsPerS));
  CHECK(engine->has_stopped());
  engine.reset();
  CHECK(host.page_locked_bytes() == 0);
}

}  // namespace
}  // namespace kvtier::testing
