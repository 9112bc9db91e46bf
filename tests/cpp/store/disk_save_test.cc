// Saves without a host tier: a batch of blocks at a time through staging buffers straight to disk.
#include "mover_double.h"
#include "testing/without_leak_check.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBytes = 4096;
constexpr std::uint64_t kStagingBytes = 256 << 10;
constexpr std::size_t kWindowBlocks = kStagingBytes / 4 / kBytes;

struct DiskSaveWorld : StoreWorld {
  explicit DiskSaveWorld(std::uint64_t seed = 1) : StoreWorld(seed) {
    options.host_bytes = 0;
    options.staging_bytes = kStagingBytes;
  }
  void begin() {
    REQUIRE(open().is_ok());
    space = add_namespace(kBytes);
  }
  void end(const PagedCall& call) {
    REQUIRE(store->wait_job(*call.job, 60 * kNsPerS).is_ok());
    CHECK(call.mover->is_finished);
    check_consistency();
  }
  /// Lets moves end until `call` has, all of them as `status` says.
  void end_moves(const PagedCall& call, const Status& status) {
    while (!store->wait_job(*call.job, kNsPerMs).is_ok()) {
      if (call.mover->num_under_way() > 0) call.mover->end_next(status);
    }
    end(call);
  }
  std::uint32_t space = 0;
};

}  // namespace

TEST_CASE("without a host tier saves of any length lie on disk when they end") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    for (const std::size_t num_blocks : {std::size_t{1}, kWindowBlocks, 10 * kWindowBlocks + 3}) {
      CAPTURE(seed);
      CAPTURE(num_blocks);
      DiskSaveWorld world(seed);
      world.begin();
      PagedCall save = start_save(world, {world.space, 0, num_blocks, kBytes});
      world.end(save);
      CHECK(count_done(save.outcomes()) == num_blocks);
      CHECK(save.mover->moved.size() == num_blocks);
      CHECK(world.store->stats().disk.bytes_written >= num_blocks * kBytes);
      PagedCall load = start_load(world, {world.space, 0, num_blocks, kBytes});
      world.end(load);
      CHECK(count_done(load.outcomes()) == num_blocks);
      check_memory(load);
      world.flush();
      REQUIRE(world.restart().is_ok());
      CHECK(count_done(world.get(world.add_namespace(kBytes), 0, num_blocks, kBytes)) ==
            num_blocks);
      CHECK(world.store->stats().disk.corrupt == 0);
    }
  }
}

TEST_CASE("without a host tier a save of parts has a checksum for each") {
  DiskSaveWorld world;
  REQUIRE(world.open().is_ok());
  const std::vector<std::uint64_t> parts{1000, 0, 3096};
  world.space = world.add_namespace(kBytes, 3, parts);
  PagedCall save = start_save(world, {world.space, 0, 40, kBytes}, {.part_bytes = parts});
  world.end(save);
  CHECK(count_done(world.get(world.space, 0, 40, kBytes)) == 40);
}

TEST_CASE("many saves at once share few staging buffers, and all come to an end") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    DiskSaveWorld world(seed);
    world.begin();
    std::vector<PagedCall> saves;
    for (std::uint64_t k = 0; k < 12; ++k) {
      saves.push_back(start_save(world, {world.space, 1000 * k, 3 * kWindowBlocks, kBytes}));
    }
    for (std::uint64_t k = 0; k < saves.size(); ++k) {
      world.end(saves[k]);
      CHECK(count_done(saves[k].outcomes()) == 3 * kWindowBlocks);
      CHECK(count_done(world.get(world.space, 1000 * k, 3 * kWindowBlocks, kBytes)) ==
            3 * kWindowBlocks);
    }
  }
}

TEST_CASE("a failed move to the disk leaves nothing of it, and its buffers are free again") {
  for (const StatusCode code : {StatusCode::kIoError, StatusCode::kExhausted}) {
    CAPTURE(static_cast<int>(code));
    DiskSaveWorld world;
    world.begin();
    world.put(world.space, 0, 4, kBytes);
    // More than all buffers together, if they were not given back.
    for (int round = 0; round < 10; ++round) {
      PagedCall save =
          start_save(world, {world.space, 0, 2 * kWindowBlocks, kBytes}, {.ends_by_itself = false});
      world.end_moves(save, Status(code, "device is lost"));
      CHECK(count_done(save.outcomes()) == 4);
      const bool is_failure = code == StatusCode::kIoError;
      CHECK(save.outcomes()[4] == (is_failure ? Outcome::kFailed : Outcome::kDeclined));
      CHECK(world.lookup(world.space, 0, 2 * kWindowBlocks) == 4);
    }
    PagedCall next = start_save(world, {world.space, 0, 2 * kWindowBlocks, kBytes});
    world.end(next);
    CHECK(world.lookup(world.space, 0, 2 * kWindowBlocks) == 2 * kWindowBlocks);
  }
}

TEST_CASE("a cancelled or late save to the disk ends when its move has, and not before") {
  for (const bool is_cancelled : {false, true}) {
    CAPTURE(is_cancelled);
    DiskSaveWorld world;
    world.begin();
    PagedCall save = start_save(world, {world.space, 0, 8, kBytes},
                                {.timeout_ns = kNsPerS, .ends_by_itself = false});
    if (is_cancelled) CHECK(world.store->cancel_job(*save.job).is_ok());
    CHECK(world.store->wait_job(*save.job, 10 * kNsPerS).code() == StatusCode::kTimeout);
    CHECK(save.mover->num_cancels == 1);
    // Its buffers are still the mover's.
    std::byte* const taken = save.mover->next_slot();
    std::memset(taken, 0x55, kBytes);
    for (std::uint64_t k = 0; k < 8; ++k) {
      CHECK(count_done(world.put(world.space, 1000 + 100 * k, 2 * kWindowBlocks, kBytes)) ==
            2 * kWindowBlocks);
    }
    CHECK(*taken == std::byte{0x55});
    save.mover->end_next();
    world.end(save);
    CHECK(save.outcomes()[0] == (is_cancelled ? Outcome::kCancelled : Outcome::kTimeout));
    CHECK(world.lookup(world.space, 0, 8) == 0);
    for (std::uint64_t k = 0; k < 8; ++k) {
      CHECK(count_done(world.get(world.space, 1000 + 100 * k, 2 * kWindowBlocks, kBytes)) ==
            2 * kWindowBlocks);
    }
  }
}

TEST_CASE("a long save to the disk that is over starts no further move") {
  enum class End { kCancelled, kLate, kFailed };
  for (const End end : {End::kCancelled, End::kLate, End::kFailed}) {
    CAPTURE(static_cast<int>(end));
    DiskSaveWorld world;
    world.begin();
    const std::size_t num_blocks = 4 * kWindowBlocks;
    PagedCall save = start_save(world, {world.space, 0, num_blocks, kBytes},
                                {.timeout_ns = kNsPerS, .ends_by_itself = false});
    REQUIRE(save.mover->num_under_way() == 1);
    const std::size_t num_begun = save.mover->moved.size();
    CHECK(num_begun < num_blocks);
    if (end == End::kCancelled) CHECK(world.store->cancel_job(*save.job).is_ok());
    if (end == End::kLate) {
      CHECK(world.store->wait_job(*save.job, 2 * kNsPerS).code() == StatusCode::kTimeout);
    }
    const Status status =
        end == End::kFailed ? Status(StatusCode::kIoError, "device is lost") : Status::ok();
    save.mover->end_next(status);
    world.end(save);
    CHECK(save.mover->moved.size() == num_begun);
    const Outcome last = end == End::kFailed ? Outcome::kDeclined
                         : end == End::kLate ? Outcome::kTimeout
                                             : Outcome::kCancelled;
    CHECK(save.outcomes().back() == last);
    CHECK(count_done(save.outcomes()) == 0);
    // What came to the disk before the job was seen to be over is written all the same.
    run_for_ns(*world.executor, kNsPerS);
    CHECK(world.store->stats().staging_bytes_used == 0);
    CHECK(world.lookup(world.space, 0, num_blocks) <= num_begun);
    world.check_consistency();
  }
}

TEST_CASE("close beside two long saves, one of which never ends, starts nothing more") {
  const WithoutLeakCheck allowed;
  DiskSaveWorld world;
  world.begin();
  PagedCall silent =
      start_save(world, {world.space, 0, 4 * kWindowBlocks, kBytes}, {.ends_by_itself = false});
  PagedCall other = start_save(world, {world.space, 1000, 4 * kWindowBlocks, kBytes});
  (void)world.store->close(2 * kNsPerS).is_ok();
  // The double checks that no move is started after the last one was said to be.
  CHECK(silent.mover->is_finished);
  CHECK(other.mover->is_finished);
  world.store.reset();
}

TEST_CASE("a child saved to the disk before its parent's move has ended waits for it") {
  for (const bool is_good : {true, false}) {
    CAPTURE(is_good);
    DiskSaveWorld world;
    world.begin();
    PagedCall parent = start_save(world, {world.space, 0, 4, kBytes}, {.ends_by_itself = false});
    PagedCall child = start_save(world, {world.space, 4, 4, kBytes}, {.parent = key_of(3)});
    CHECK(world.store->wait_job(*child.job, kNsPerS).code() == StatusCode::kTimeout);
    CHECK(world.lookup(world.space, 0, 8) == 0);
    parent.mover->end_next(is_good ? Status::ok() : Status(StatusCode::kIoError, "lost"));
    world.end(parent);
    world.end(child);
    CHECK(count_done(child.outcomes()) == (is_good ? 4 : 0));
    CHECK(world.lookup(world.space, 0, 8) == (is_good ? 8 : 0));
  }
}

TEST_CASE("a save to the disk writes once more what nobody has checked since an unclean close") {
  DiskSaveWorld world;
  world.begin();
  world.put(world.space, 0, 8, kBytes);
  world.flush();
  REQUIRE(world.crash_and_open(true).is_ok());
  world.space = world.add_namespace(kBytes);
  REQUIRE(world.lookup(world.space, 0, 8) == 8);
  PagedCall save = start_save(world, {world.space, 0, 8, kBytes});
  world.end(save);
  CHECK(count_done(save.outcomes()) == 8);
  CHECK(save.mover->moved.size() == 8);
  CHECK(count_done(world.get(world.space, 0, 8, kBytes)) == 8);
}

TEST_CASE("close behind a mover that never answers takes no staging buffer from it") {
  const WithoutLeakCheck allowed;
  DiskSaveWorld world;
  world.begin();
  PagedCall save = start_save(world, {world.space, 0, 8, kBytes}, {.ends_by_itself = false});
  const TimeNs start_ns = world.clock->now_ns();
  (void)world.store->close(2 * kNsPerS).is_ok();
  CHECK(world.clock->now_ns() - start_ns < 6 * kNsPerS);
  CHECK_FALSE(save.job->is_ended());
  CHECK(save.mover->is_finished);
  world.store.reset();
  std::memset(save.mover->next_slot(), 0x77, kBytes);
}
