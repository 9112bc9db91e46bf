// Saves: blocks come with the mover's bytes, become resident when it has ended, and not otherwise.
#include "mover_double.h"
#include "testing/without_leak_check.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBytes = 4096;

struct SaveWorld : StoreWorld {
  explicit SaveWorld(std::uint64_t seed = 1) : StoreWorld(seed) {}
  void begin() {
    REQUIRE(open().is_ok());
    space = add_namespace(kBytes);
  }
  void end(const PagedCall& call) {
    REQUIRE(store->wait_job(*call.job, 60 * kNsPerS).is_ok());
    CHECK(call.mover->is_finished);
    check_consistency();
  }
  std::uint32_t space = 0;
};

}  // namespace

TEST_CASE("saved blocks are there once their move has ended, and come back from disk") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    SaveWorld world(seed);
    world.begin();
    PagedCall save = start_save(world, {world.space, 0, 20, kBytes}, {.ends_by_itself = false});
    CHECK(save.mover->num_under_way() == 1);  // In the caller's thread: after the right work.
    CHECK(save.mover->is_finished);
    CHECK(world.lookup(world.space, 0, 20) == 0);
    CHECK(world.store->wait_job(*save.job, kNsPerS).code() == StatusCode::kTimeout);
    save.mover->end_next();
    world.end(save);
    CHECK(count_done(save.outcomes()) == 20);
    CHECK(count_done(world.get(world.space, 0, 20, kBytes)) == 20);
    world.flush();
    REQUIRE(world.restart().is_ok());
    CHECK(count_done(world.get(world.add_namespace(kBytes), 0, 20, kBytes)) == 20);
    CHECK(world.store->stats().disk.corrupt == 0);
  }
}

TEST_CASE("a save of parts has a checksum for each") {
  SaveWorld world;
  REQUIRE(world.open().is_ok());
  const std::vector<std::uint64_t> parts{1000, 0, 3096};
  world.space = world.add_namespace(kBytes, 3, parts);
  PagedCall save = start_save(world, {world.space, 0, 5, kBytes}, {.part_bytes = parts});
  world.end(save);
  world.flush();
  REQUIRE(world.store->clear(true, false).is_ok());
  CHECK(count_done(world.get(world.space, 0, 5, kBytes)) == 5);
}

TEST_CASE("what is stored already is not moved again") {
  SaveWorld world;
  world.begin();
  world.put(world.space, 0, 6, kBytes);
  PagedCall save = start_save(world, {world.space, 0, 10, kBytes});
  world.end(save);
  CHECK(count_done(save.outcomes()) == 10);
  CHECK(save.mover->moved == std::set<std::size_t>{6, 7, 8, 9});
  PagedCall again = start_save(world, {world.space, 0, 10, kBytes});
  world.end(again);
  CHECK(again.mover->moved.empty());
}

TEST_CASE("a failed move leaves nothing of its save, and what was stored stays") {
  for (const bool is_refused : {false, true}) {
    CAPTURE(is_refused);
    SaveWorld world;
    world.begin();
    world.put(world.space, 0, 4, kBytes);
    PagedCall save;
    if (is_refused) {
      auto memory = std::make_shared<std::vector<std::vector<std::byte>>>(8);
      save = {0, memory, {}, {}};
      save.mover =
          std::make_shared<MoverDouble>(MoverDouble::Direction::kSave, *memory,
                                        std::vector<std::uint64_t>{kBytes}, world.executor);
      save.mover->start_status = Status(StatusCode::kIoError, "device is lost");
      const auto keys = keys_of(0, 8);
      save.job = world.store->save_async({world.space, keys, save.mover, {}, true, 0, kNsPerS}, {})
                     .value();
    } else {
      save = start_save(world, {world.space, 0, 8, kBytes}, {.ends_by_itself = false});
      save.mover->end_next(Status(StatusCode::kIoError, "device is lost"));
    }
    world.end(save);
    CHECK(count_done(save.outcomes()) == 4);
    CHECK(save.outcomes()[4] == Outcome::kFailed);
    CHECK(world.lookup(world.space, 0, 8) == 4);
    // The next one is free to bring them.
    PagedCall next = start_save(world, {world.space, 0, 8, kBytes});
    world.end(next);
    CHECK(world.lookup(world.space, 0, 8) == 8);
  }
}

TEST_CASE("a cancelled or late save ends when its move has, and not before") {
  for (const bool is_cancelled : {false, true}) {
    CAPTURE(is_cancelled);
    SaveWorld world;
    world.begin();
    PagedCall save = start_save(world, {world.space, 0, 8, kBytes},
                                {.timeout_ns = kNsPerS, .ends_by_itself = false});
    if (is_cancelled) CHECK(world.store->cancel_job(*save.job).is_ok());
    CHECK(world.store->wait_job(*save.job, 10 * kNsPerS).code() == StatusCode::kTimeout);
    CHECK(save.mover->num_cancels == 1);
    CHECK(world.lookup(world.space, 0, 8) == 0);
    save.mover->end_next();
    world.end(save);
    CHECK(save.outcomes()[0] == (is_cancelled ? Outcome::kCancelled : Outcome::kTimeout));
    CHECK(world.lookup(world.space, 0, 8) == 0);
  }
}

TEST_CASE("a child saved before its parent's move has ended waits for it") {
  for (const bool is_good : {true, false}) {
    CAPTURE(is_good);
    SaveWorld world;
    world.begin();
    PagedCall parent = start_save(world, {world.space, 0, 4, kBytes}, {.ends_by_itself = false});
    PagedCall child = start_save(world, {world.space, 4, 4, kBytes},
                                 {.ends_by_itself = false, .parent = key_of(3)});
    child.mover->end_next();
    CHECK(world.store->wait_job(*child.job, kNsPerS).code() == StatusCode::kTimeout);
    CHECK(world.lookup(world.space, 4, 4) == 0);
    parent.mover->end_next(is_good ? Status::ok() : Status(StatusCode::kIoError, "lost"));
    world.end(parent);
    world.end(child);
    CHECK(count_done(child.outcomes()) == (is_good ? 4 : 0));
    CHECK(world.lookup(world.space, 0, 8) == (is_good ? 8 : 0));
  }
}

TEST_CASE("slots that a mover writes to are not given to anybody else") {
  SaveWorld world;
  world.options.host_bytes = 1 << 20;
  world.begin();
  PagedCall save = start_save(world, {world.space, 0, 100, kBytes}, {.ends_by_itself = false});
  for (std::uint64_t i = 0; i < 20; ++i) world.put(world.space, 1000 + 100 * i, 100, kBytes);
  save.mover->end_next();
  world.end(save);
  CHECK(count_done(save.outcomes()) == 100);
  CHECK(count_done(world.get(world.space, 0, 100, kBytes)) == 100);
}

TEST_CASE("a save under way at close is kept if its move ends in time") {
  SaveWorld world;
  world.begin();
  PagedCall save = start_save(world, {world.space, 0, 8, kBytes});
  REQUIRE(world.store->close(10 * kNsPerS).is_ok());
  REQUIRE(save.job->is_ended());
  CHECK(count_done(save.outcomes()) == 8);
  world.store.reset();
  REQUIRE(world.open().is_ok());
  CHECK(count_done(world.get(world.add_namespace(kBytes), 0, 8, kBytes)) == 8);
}

TEST_CASE("close behind a mover that never answers ends in time, and nothing is taken from it") {
  const WithoutLeakCheck allowed;
  SaveWorld world;
  world.begin();
  PagedCall save = start_save(world, {world.space, 0, 8, kBytes}, {.ends_by_itself = false});
  const TimeNs start_ns = world.clock->now_ns();
  (void)world.store->close(2 * kNsPerS).is_ok();
  CHECK(world.clock->now_ns() - start_ns < 6 * kNsPerS);
  CHECK_FALSE(save.job->is_ended());
  CHECK(save.mover->num_cancels == 1);
  CHECK(save.mover->is_finished);
  world.store.reset();
  // The slot is still the mover's to write to.
  std::memset(save.mover->next_slot(), 0x77, kBytes);
}

TEST_CASE("a store that breaks under a load ends it only when its moves have ended") {
  const WithoutLeakCheck allowed;  // What a broken call held stays held.
  SaveWorld world;
  world.options.host_bytes = 0;
  world.begin();
  // More than one move: the second one is started by a later step.
  for (std::size_t i = 0; i < 2000; i += 100) {
    std::optional<BlockKey> parent;
    if (i > 0) parent = key_of(i - 1);
    world.put(world.space, i, 100, kBytes, parent);
  }
  world.flush();
  PagedCall load = start_load(world, {world.space, 0, 2000, kBytes}, {.ends_by_itself = false});
  while (load.mover->num_under_way() == 0) {
    (void)world.store->wait_job(*load.job, kNsPerMs).is_ok();
  }
  load.mover->breaks_at_start = true;
  CHECK(world.store->wait_job(*load.job, 10 * kNsPerS).code() == StatusCode::kTimeout);
  REQUIRE(load.mover->num_breaks == 1);
  while (load.mover->num_under_way() > 0) load.mover->end_next();
  REQUIRE(world.store->wait_job(*load.job, 10 * kNsPerS).is_ok());
  CHECK(load.job->status().code() == StatusCode::kInternal);
  CHECK(load.undefined().size() == 2000);
}

TEST_CASE("a mover without room declines a save, and nothing is called failed") {
  SaveWorld world;
  world.begin();
  auto memory = std::make_shared<std::vector<std::vector<std::byte>>>(8);
  PagedCall save{0, memory, {}, {}};
  save.mover = std::make_shared<MoverDouble>(MoverDouble::Direction::kSave, *memory,
                                             std::vector<std::uint64_t>{kBytes}, world.executor);
  save.mover->start_status = Status(StatusCode::kExhausted, "too many jobs");
  const auto keys = keys_of(0, 8);
  save.job =
      world.store->save_async({world.space, keys, save.mover, {}, true, 0, kNsPerS}, {}).value();
  world.end(save);
  CHECK(save.outcomes() == std::vector<Outcome>(8, Outcome::kDeclined));
}
