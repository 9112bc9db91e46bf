// Jobs: what is planned at once and what goes on behind, cancelling, polling, and their bounds.
#include <poll.h>

#include <algorithm>
#include <mutex>

#include "job_calls.h"
#include "testing/without_leak_check.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBytes = 4096;

bool is_readable(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

void run_steps(StoreWorld& world, std::uint64_t num_steps) {
  std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  const auto is_over = [&num_steps] { return num_steps-- == 0; };
  (void)world.executor->wait(lock, is_over, world.clock->now_ns() + kNsPerS);
}

/// A store with `num_blocks` blocks from number 0 on, on disk alone.
struct ColdWorld : StoreWorld {
  explicit ColdWorld(std::size_t num_blocks, std::uint64_t seed = 1) : StoreWorld(seed) {
    REQUIRE(open().is_ok());
    space = add_namespace(kBytes);
    REQUIRE(count_done(put(space, 0, num_blocks, kBytes)) == num_blocks);
    flush();
    REQUIRE(store->clear(true, false).is_ok());
    REQUIRE(lookup(space, 0, num_blocks) == num_blocks);
  }
  std::uint32_t space = 0;
};

}  // namespace

TEST_CASE("a put job's blocks come back from a get job") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    REQUIRE(world.open().is_ok());
    const std::uint32_t space = world.add_namespace(kBytes);
    int num_ends = 0;
    const JobCall put = start_put(*world.store, {space, 0, 20, kBytes}, kNsPerS, {}, 0,
                                  [&num_ends] { ++num_ends; });
    REQUIRE(put.job);
    CHECK_FALSE(put.job->is_ended());
    CHECK(world.lookup(space, 0, 20) == 0);  // Being filled does not count.
    REQUIRE(world.store->wait_job(*put.job, kNsPerS).is_ok());
    CHECK(count_done(put.outcomes()) == 20);
    CHECK(num_ends == 1);
    const JobCall get = start_get(*world.store, {space, 0, 25, kBytes}, kNsPerS);
    REQUIRE(world.store->wait_job(*get.job, kNsPerS).is_ok());
    CHECK(count_done(get.outcomes()) == 20);
    CHECK(has_right_bytes(get));
    world.check_consistency();
  }
}

TEST_CASE("a later put finds the parents that an earlier job has not copied yet") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.options.host_bytes = seed % 2 == 0 ? 0 : 8 << 20;
    REQUIRE(world.open().is_ok());
    const std::uint32_t space = world.add_namespace(kBytes);
    std::vector<JobCall> puts;
    for (std::uint64_t i = 0; i < 8; ++i) {
      std::optional<BlockKey> parent;
      if (i > 0) parent = key_of(i * 4 - 1);
      puts.push_back(start_put(*world.store, {space, i * 4, 4, kBytes}, 10 * kNsPerS, parent));
    }
    for (const JobCall& put : puts) {
      REQUIRE(world.store->wait_job(*put.job, 20 * kNsPerS).is_ok());
      CHECK(count_done(put.outcomes()) == 4);
    }
    CHECK(count_done(world.get(space, 0, 32, kBytes)) == 32);
    world.check_consistency();
  }
}

TEST_CASE("report G5: the second job ends before the first, and poll shows the second") {
  ColdWorld world(10);
  REQUIRE(count_done(world.put(world.space, 100, 4, kBytes)) == 4);
  world.flush();
  world.disk->set_stalled(true);
  const JobCall first = start_get(*world.store, {world.space, 0, 10, kBytes}, 60 * kNsPerS);
  const JobCall second = start_get(*world.store, {world.space, 100, 4, kBytes}, 60 * kNsPerS);
  REQUIRE(world.store->wait_job(*second.job, kNsPerS).is_ok());
  CHECK(count_done(second.outcomes()) == 4);
  CHECK(has_right_bytes(second));
  CHECK_FALSE(first.job->is_ended());
  auto polled = world.store->poll_jobs();
  REQUIRE(polled.is_ok());
  CHECK(polled.value() == std::vector<std::shared_ptr<Job>>{second.job});
  CHECK(world.store->wait_job(*first.job, 10 * kNsPerMs).code() == StatusCode::kTimeout);
  world.disk->set_stalled(false);
  REQUIRE(world.store->wait_job(*first.job, kNsPerS).is_ok());
  CHECK(count_done(first.outcomes()) == 10);
  CHECK(has_right_bytes(first));
  polled = world.store->poll_jobs();
  REQUIRE(polled.is_ok());
  CHECK(polled.value() == std::vector<std::shared_ptr<Job>>{first.job});
  CHECK(world.store->poll_jobs().value().empty());
}

TEST_CASE("hundreds of jobs wait for a silent disk while host hits go through") {
  ColdWorld world(400);
  REQUIRE(count_done(world.put(world.space, 1000, 4, kBytes)) == 4);
  world.flush();
  world.disk->set_stalled(true);
  std::vector<JobCall> waiting;
  for (std::uint64_t i = 0; i < 400; ++i) {
    waiting.push_back(start_get(*world.store, {world.space, i, 1, kBytes}, kNsPerS, false));
  }
  const JobCall hit = start_get(*world.store, {world.space, 1000, 4, kBytes}, kNsPerS);
  REQUIRE(world.store->wait_job(*hit.job, kNsPerMs).is_ok());
  CHECK(count_done(hit.outcomes()) == 4);
  run_for_ns(*world.executor, 10 * kNsPerMs);
  CHECK(world.store->stats().jobs.suspended == 400);
  // Their own deadlines end them; nothing is removed.
  run_for_ns(*world.executor, 2 * kNsPerS);
  for (const JobCall& call : waiting) {
    REQUIRE(call.job->is_ended());
    CHECK(call.outcomes()[0] == Outcome::kTimeout);
    CHECK(has_right_bytes(call));
  }
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, 10 * kNsPerS);
  CHECK(world.lookup(world.space, 0, 400) == 400);
  world.check_consistency();
}

TEST_CASE("report A2: after a cancelled put the buffer is free and no mix is stored") {
  constexpr std::size_t kBlockBytes = 512 << 10;
  constexpr std::size_t kNumBlocks = 20;  // Three turns of a job.
  std::size_t num_partly = 0;
  for (const std::uint64_t host_bytes : {16ull << 20, 0ull}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      CAPTURE(seed);
      CAPTURE(host_bytes);
      StoreWorld world(seed);
      world.options.host_bytes = host_bytes;
      REQUIRE(world.open().is_ok());
      const std::uint32_t space = world.add_namespace(kBlockBytes);
      JobCall put = start_put(*world.store, {space, 0, kNumBlocks, kBlockBytes}, 30 * kNsPerS);
      // Cancelled after so many steps of the simulation.
      run_steps(world, seed * (host_bytes > 0 ? 1 : 8));
      REQUIRE(world.store->cancel_job(*put.job).is_ok());
      REQUIRE(world.store->wait_job(*put.job, kNsPerS).is_ok());
      for (auto& buffer : put.buffers) std::fill(buffer.begin(), buffer.end(), std::byte{0xee});
      const std::size_t num_done = count_done(put.outcomes());
      const auto num_cancelled = static_cast<std::size_t>(
          std::count(put.outcomes().begin(), put.outcomes().end(), Outcome::kCancelled));
      CHECK(num_done + num_cancelled == kNumBlocks);
      num_partly += num_done > 0 && num_cancelled > 0 ? 1 : 0;
      run_until_idle(*world.executor);
      // Checks every byte of what is there.
      const auto outcomes = world.get(space, 0, kNumBlocks, kBlockBytes);
      if (host_bytes > 0) CHECK(count_done(outcomes) == num_done);
      CHECK(count_done(outcomes) >= num_done);
      world.check_consistency();
      // What was cancelled can be offered again.
      CHECK(count_done(world.put(space, 0, kNumBlocks, kBlockBytes)) == kNumBlocks);
      world.check_consistency();
    }
  }
  CHECK(num_partly > 0);
}

TEST_CASE("who joined the fill of a cancelled put may offer the block again") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(kBytes);
  const JobCall first = start_put(*world.store, {space, 0, 3, kBytes}, kNsPerS);
  const JobCall joined = start_put(*world.store, {space, 0, 3, kBytes}, kNsPerS);
  const JobCall child = start_put(*world.store, {space, 3, 1, kBytes}, kNsPerS, key_of(2));
  REQUIRE(world.store->cancel_job(*first.job).is_ok());
  for (const JobCall* call : {&first, &joined, &child}) {
    REQUIRE(world.store->wait_job(*call->job, kNsPerS).is_ok());
  }
  CHECK(std::count(first.outcomes().begin(), first.outcomes().end(), Outcome::kCancelled) == 3);
  CHECK(std::count(joined.outcomes().begin(), joined.outcomes().end(), Outcome::kDeclined) == 3);
  CHECK(child.outcomes()[0] == Outcome::kDeclined);
  CHECK(world.lookup(space, 0, 4) == 0);
  CHECK(count_done(world.put(space, 0, 4, kBytes)) == 4);
  world.check_consistency();
}

TEST_CASE("cancelling a get that waits for the disk removes nothing") {
  ColdWorld world(10);
  world.disk->set_stalled(true);
  const JobCall get = start_get(*world.store, {world.space, 0, 10, kBytes}, 60 * kNsPerS, false);
  run_for_ns(*world.executor, kNsPerMs);
  REQUIRE(world.store->cancel_job(*get.job).is_ok());
  REQUIRE(world.store->wait_job(*get.job, kNsPerMs).is_ok());
  for (const Outcome outcome : get.outcomes()) CHECK(outcome == Outcome::kCancelled);
  CHECK(has_right_bytes(get));
  // Of an ended job nothing is left to cancel.
  CHECK(world.store->cancel_job(*get.job).is_ok());
  world.disk->set_stalled(false);
  run_until_idle(*world.executor);
  CHECK(count_done(world.get(world.space, 0, 10, kBytes)) == 10);
  CHECK(world.store->stats().staging_bytes_used == 0);
  world.check_consistency();
}

TEST_CASE("report G10: a thousand jobs that nobody keeps or polls give everything back") {
  StoreWorld world;
  world.options.host_bytes = 1 << 20;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(kBytes);
  std::size_t num_done = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const JobCall put = start_put(*world.store, {space, i, 1, kBytes}, 30 * kNsPerS);
    run_for_ns(*world.executor, kNsPerMs);
    num_done += put.job->is_ended() && put.outcomes()[0] == Outcome::kDone ? 1 : 0;
  }
  CHECK(num_done == 1000);
  const StoreStats stats = world.store->stats();
  CHECK(stats.jobs.unfinished == 0);
  CHECK(stats.jobs.ended == 1000);
  CHECK(stats.staging_bytes_used == 0);
  // Nothing is held: others can have the whole tier.
  CHECK(count_done(world.put(space, 5000, 240, kBytes)) == 240);
  world.check_consistency();
}

TEST_CASE("ended jobs that nobody keeps are listed up to a bound, kept ones always") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(kBytes);
  // A get of what is not there ends on the spot.
  const JobCall kept = start_get(*world.store, {space, 0, 1, kBytes}, kNsPerS);
  REQUIRE(kept.job->is_ended());
  for (int i = 0; i < 20'000; ++i) {
    (void)start_get(*world.store, {space, 0, 1, kBytes}, kNsPerS);
    REQUIRE(world.store->stats().jobs.listed <= 8194);
  }
  const auto polled = world.store->poll_jobs();
  REQUIRE(polled.is_ok());
  CHECK(polled.value().size() >= 4096);
  CHECK(polled.value().front() == kept.job);
}

TEST_CASE("beyond the bound of unfinished jobs a new one ends at once") {
  ColdWorld world(1);
  world.disk->set_stalled(true);
  std::vector<JobCall> waiting;
  for (int i = 0; i < 4096; ++i) {
    waiting.push_back(start_get(*world.store, {world.space, 0, 1, kBytes}, kNsPerS));
    REQUIRE_FALSE(waiting.back().job->is_ended());
  }
  const JobCall get = start_get(*world.store, {world.space, 0, 1, kBytes}, kNsPerS);
  REQUIRE(get.job->is_ended());
  CHECK(get.outcomes() == std::vector<Outcome>{Outcome::kMiss});
  const JobCall put = start_put(*world.store, {world.space, 50, 2, kBytes}, kNsPerS);
  REQUIRE(put.job->is_ended());
  CHECK(put.outcomes() == std::vector<Outcome>(2, Outcome::kDeclined));
  CHECK(world.store->stats().jobs.refused == 2);
  world.disk->set_stalled(false);
  REQUIRE(world.store->wait_job(*waiting.back().job, 2 * kNsPerS).is_ok());
  run_for_ns(*world.executor, 2 * kNsPerS);
  for (const JobCall& call : waiting) REQUIRE(call.job->is_ended());
  CHECK(count_done(waiting.front().outcomes()) == 1);
  world.check_consistency();
}

TEST_CASE("report G3: puts offered to a very slow disk stay bounded, and host hits stay quick") {
  SimOptions sim;
  sim.bytes_per_s = 1e6;
  StoreWorld world(1, sim);
  constexpr std::size_t kBlockBytes = 64 << 10;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(kBlockBytes);
  REQUIRE(count_done(world.put(space, 1'000'000, 4, kBlockBytes)) == 4);
  const std::uint64_t backlog_max = world.options.host_bytes / 2;
  std::vector<TimeNs> get_ns;
  std::size_t num_unended_max = 0;
  // 64 MiB in ten seconds that can write ten MB.
  for (std::uint64_t i = 0; i < 256; ++i) {
    const JobCall put = start_put(*world.store, {space, i * 4, 4, kBlockBytes}, 30 * kNsPerS);
    run_for_ns(*world.executor, 39 * kNsPerMs);
    REQUIRE(put.job->is_ended());
    const TimeNs start_ns = world.clock->now_ns();
    const JobCall get = start_get(*world.store, {space, 1'000'000, 4, kBlockBytes}, 30 * kNsPerS);
    REQUIRE(world.store->wait_job(*get.job, 30 * kNsPerS).is_ok());
    CHECK(has_right_bytes(get));
    get_ns.push_back(world.clock->now_ns() - start_ns);
    const StoreStats stats = world.store->stats();
    CHECK(stats.disk.backlog_bytes <= backlog_max);
    CHECK(stats.host.bytes_used <= world.options.host_bytes);
    num_unended_max = std::max<std::size_t>(num_unended_max, stats.jobs.unfinished);
  }
  std::sort(get_ns.begin(), get_ns.end());
  CHECK(get_ns[get_ns.size() * 99 / 100] < 100 * kNsPerMs);
  CHECK(num_unended_max <= 1);
  world.check_consistency();
  CHECK(world.store->close(60 * kNsPerS).is_ok());
}

TEST_CASE("close ends jobs that wait, within its deadline") {
  const WithoutLeakCheck without_leak_check;
  ColdWorld world(10);
  world.disk->set_stalled(true);
  const JobCall get = start_get(*world.store, {world.space, 0, 10, kBytes}, 600 * kNsPerS, false);
  const JobCall put = start_put(*world.store, {world.space, 100, 3, kBytes}, 600 * kNsPerS);
  const TimeNs start_ns = world.clock->now_ns();
  (void)world.store->close(kNsPerS).is_ok();
  CHECK(world.clock->now_ns() - start_ns < 2 * kNsPerS);
  REQUIRE(get.job->is_ended());
  for (const Outcome outcome : get.outcomes()) CHECK(outcome == Outcome::kCancelled);
  REQUIRE(put.job->is_ended());
  CHECK(count_done(put.outcomes()) == 3);  // Its bytes only went to host.
  CHECK(world.store->wait_job(*get.job, 0).is_ok());
  CHECK(world.store->poll_jobs().status().code() == StatusCode::kClosed);
  CHECK(world.store->prefetch(world.space, keys_of(0, 3)).code() == StatusCode::kClosed);
  CHECK_FALSE(start_get(*world.store, {world.space, 0, 1, kBytes}, kNsPerS).job);
}

TEST_CASE("the event descriptor is readable exactly while poll would list something") {
  for (const bool is_early : {true, false}) {
    StoreWorld world;
    REQUIRE(world.open().is_ok());
    const std::uint32_t space = world.add_namespace(kBytes);
    if (is_early) CHECK_FALSE(is_readable(world.store->job_event_fd().value()));
    const JobCall put = start_put(*world.store, {space, 0, 3, kBytes}, kNsPerS);
    if (is_early) CHECK_FALSE(is_readable(world.store->job_event_fd().value()));
    REQUIRE(world.store->wait_job(*put.job, kNsPerS).is_ok());
    const int fd = world.store->job_event_fd().value();
    CHECK(is_readable(fd));
    CHECK(is_readable(fd));
    CHECK(world.store->poll_jobs().value().size() == 1);
    CHECK_FALSE(is_readable(fd));
    const JobCall get = start_get(*world.store, {space, 0, 3, kBytes}, kNsPerS);
    REQUIRE(world.store->wait_job(*get.job, kNsPerS).is_ok());
    CHECK(is_readable(fd));
    CHECK(world.store->job_event_fd().value() == fd);
  }
}

TEST_CASE("jobs of unknown namespaces are refused") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto keys = keys_of(0, 1);
  PutRequest put;
  put.namespace_index = 7;
  CHECK(world.store->put_async(put, {}).status().code() == StatusCode::kInvalidArgument);
  GetRequest get;
  get.namespace_index = 7;
  CHECK(world.store->get_async(get, {}).status().code() == StatusCode::kInvalidArgument);
  CHECK(world.store->prefetch(7, keys).code() == StatusCode::kInvalidArgument);
  // A job of no store, and one of another.
  const Job stranger(1, Job::Kind::kGet);
  CHECK(world.store->cancel_job(stranger).is_ok());
  CHECK(world.store->wait_job(stranger, kNsPerMs).code() == StatusCode::kTimeout);
}
