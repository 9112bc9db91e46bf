// A disk that is full, fails, or loses files while the store uses it (D4, D5, E3, E10, G1, K5):
// misses and a degraded tier, never a hang, a wrong byte or a flood of log lines.
#include "disk/disk_engine.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

Status refuse(const std::string& text, int os_errno) { return Status::from_errno(os_errno, text); }

}  // namespace

TEST_CASE("D4: a write that came short is no success and leaves no readable block") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(8192);
  world.put(space, 100, 1, 8192);  // The segment exists.
  world.disk->faults().short_transfer = 1;
  const auto outcomes = world.put(space, 0, 3, 8192);
  CHECK(count_done(outcomes) == 0);
  world.disk->faults().short_transfer = 0;
  CHECK(world.lookup(space, 0, 3) == 0);
  CHECK(count_done(world.get(space, 0, 3, 8192)) == 0);
  world.check_consistency();
  REQUIRE(world.crash_and_open(true).is_ok());
  CHECK(world.lookup(world.add_namespace(8192), 0, 3) == 0);
}

TEST_CASE("D5: a segment file that cannot be removed is passed over and said once") {
  StoreWorld world;
  world.options.disk_bytes = 8 << 20;
  world.options.host_bytes = 4 << 20;
  std::string refused_name;
  world.hooks->on_remove = [&](const std::string& name) {
    if (!name.starts_with("segment-")) return Status::ok();
    if (refused_name.empty()) refused_name = name;
    return name == refused_name ? refuse("cannot remove file: name=" + name, EPERM) : Status::ok();
  };
  REQUIRE(world.open().is_ok());
  const auto small = world.add_namespace(64 << 10);
  const auto large = world.add_namespace(700'000);
  for (std::uint64_t number = 0; number < 150; ++number) {
    world.put(small, number, 1, 64 << 10);
    run_for_ns(*world.executor, 10 * kNsPerMs);
  }
  // Another size needs segments of the first one: the first victim stays, the next one goes.
  for (std::uint64_t number = 1000; number < 1006; ++number) {
    world.put(large, number, 1, 700'000);
    world.flush();
  }
  CHECK_FALSE(refused_name.empty());
  CHECK(world.num_log_lines_with("cannot remove a segment file") == 1);
  CHECK(world.store->stats().disk.health == Health::kOk);
  for (std::uint64_t number = 2000; number < 2100; ++number) {
    world.put(small, number, 1, 64 << 10);
    run_for_ns(*world.executor, 10 * kNsPerMs);
  }
  world.flush();
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  CHECK(world.lookup(small, 2099, 1) == 1);
  world.check_consistency();
  // Deleting and clearing still work.
  CHECK(world.store->erase(small, keys_of(2099, 1)).is_ok());
  CHECK(world.store->clear(true, true).is_ok());
}

TEST_CASE("E3: without fallocate and direct I/O the tier works, buffered, and says so once") {
  StoreWorld world;
  world.hooks->on_allocate = [] { return refuse("cannot allocate file", EOPNOTSUPP); };
  world.hooks->on_open = [](const std::string& name, const OpenFlags& flags) {
    return flags.is_direct ? refuse("cannot open file: name=" + name, EINVAL) : Status::ok();
  };
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(100'001);
  CHECK(count_done(world.put(space, 0, 20, 100'001)) == 20);
  world.flush();
  CHECK(world.store->stats().disk.mode_direct == "buffered");
  CHECK(world.store->stats().disk.mode_note.find("errno=22") != std::string::npos);
  CHECK(world.num_log_lines_with("buffered") == 1);
  REQUIRE(world.restart().is_ok());
  CHECK(count_done(world.get(world.add_namespace(100'001), 0, 20, 100'001)) == 20);
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  // Who insists on direct I/O is told why it cannot be.
  REQUIRE(world.store->close(kNsPerS).is_ok());
  world.store.reset();
  world.options.direct = DirectMode::kOn;
  const Status opened = world.open();
  CHECK(opened.code() == StatusCode::kConfig);
  CHECK(opened.message().find("direct=on") != std::string::npos);
}

TEST_CASE("E13: a device that begins to refuse direct I/O is used through the page cache") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(20'000);
  for (std::uint64_t number = 0; number < 60; ++number) world.put(space, number, 1, 20'000);
  world.flush();
  CHECK(world.store->stats().disk.mode_direct == "direct");
  world.disk->faults().is_direct_refused = true;
  for (std::uint64_t number = 0; number < 60; ++number) {
    CHECK(count_done(world.get(space, number, 1, 20'000, false)) == 1);
  }
  CHECK(count_done(world.put(space, 100, 20, 20'000)) == 20);
  world.flush();
  CHECK(count_done(world.get(space, 100, 20, 20'000, false)) == 20);
  // One op at a time: no more refusals than it takes to believe them.
  CHECK(world.disk->num_direct_refused() == disk::DiskEngine::kDirectRefusalsMax);
  CHECK(world.store->stats().disk.mode_direct == "buffered");
  CHECK(world.store->stats().disk.mode_note.find("errno=22") != std::string::npos);
  CHECK(world.num_log_lines_with("buffered") == 1);
  CHECK(world.store->stats().disk.load_failures == 0);
  CHECK(world.store->stats().disk.health == Health::kOk);
  world.check_consistency();
  // The next open looks again.
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->stats().disk.mode_direct == "buffered");
  world.disk->faults().is_direct_refused = false;
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->stats().disk.mode_direct == "direct");
  CHECK(count_done(world.get(world.add_namespace(20'000), 0, 60, 20'000)) == 60);
}

TEST_CASE("E10: a data file cut to nothing during gets costs misses and nothing else") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(20'000);
  for (std::uint64_t number = 0; number < 60; ++number) world.put(space, number, 1, 20'000);
  world.flush();
  CHECK(count_done(world.get(space, 0, 60, 20'000, false)) == 60);
  for (auto& [name, bytes] : world.disk->files()) {
    if (name.starts_with("segment-")) bytes.clear();
  }
  CHECK(count_done(world.get(space, 0, 60, 20'000, false)) == 0);
  CHECK(world.store->stats().disk.load_failures == 60);
  CHECK(world.lookup(space, 0, 1) == 0);
  CHECK(world.store->stats().disk.health != Health::kOff);  // The file's fault, not the device's.
  world.check_consistency();
  CHECK(count_done(world.put(space, 100, 5, 20'000)) == 5);
  CHECK(count_done(world.get(space, 100, 5, 20'000)) == 5);
}

TEST_CASE(
    "G1: blocks whose file was deleted miss once, are not looked up again and cost few reads") {
  for (const bool is_reopened : {false, true}) {
    CAPTURE(is_reopened);
    StoreWorld world;
    world.options.host_bytes = 0;
    REQUIRE(world.open().is_ok());
    auto space = world.add_namespace(20'000);
    world.put(space, 0, 5, 20'000);
    world.flush();
    if (is_reopened) REQUIRE(world.restart().is_ok());  // Then the file is opened at the first get.
    space = world.add_namespace(20'000);
    std::size_t num_failing = 0;
    world.hooks->on_open = [&](const std::string& name, const OpenFlags&) {
      if (!name.starts_with("segment-")) return Status::ok();
      ++num_failing;
      return refuse("cannot open file: name=" + name, ENOENT);  // As the real directory says it.
    };
    for (auto& [name, bytes] : world.disk->files()) {
      if (name.starts_with("segment-")) bytes.clear();
    }
    const std::uint64_t num_reads = world.disk->num_reads();
    const TimeNs start_ns = world.clock->now_ns();
    CHECK(count_done(world.get(space, 0, 5, 20'000)) == 0);
    CHECK(world.clock->now_ns() - start_ns < 100 * kNsPerMs);
    CHECK(world.lookup(space, 0, 5) == 0);
    CHECK(count_done(world.get(space, 0, 5, 20'000)) == 0);
    CHECK(num_failing <= 1);
    CHECK(world.disk->num_reads() - num_reads <= 10);
    CHECK(world.store->stats().disk.health == Health::kOk);
  }
}

TEST_CASE("a device that is full at segment creation gets smaller segments") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.disk_bytes = 256 << 20;         // Segments of 8 MiB.
  world.disk->set_capacity_bytes(5 << 20);
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  for (std::uint64_t number = 0; number < 200; ++number) {
    world.put(space, number, 1, 64 << 10);
    run_for_ns(*world.executor, 50 * kNsPerMs);
  }
  world.flush();
  const StoreStats stats = world.store->stats();
  CHECK(stats.disk.blocks >= 40);
  CHECK(stats.disk.evicted > 0);
  CHECK(stats.disk.health == Health::kOk);
  CHECK(world.disk->allocated_bytes() <= (5 << 20));
  CHECK(world.num_log_lines_with("cannot grow the disk tier") <= 3);
  for (std::uint64_t number = 0; number < 200; ++number) world.get(space, number, 1, 64 << 10);
  world.check_consistency();
}

TEST_CASE("a full device without reserved space makes room by evicting, or takes a break") {
  StoreWorld world;
  world.options.host_bytes = 0;
  world.disk->faults().allocate_unsupported = 1;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  const auto other = world.add_namespace(48 << 10);
  world.put(space, 0, 4, 64 << 10);
  world.flush();
  world.disk->set_capacity_bytes(world.disk->allocated_bytes());
  // One block is evicted for another; for a class without any a segment of the other one goes.
  CHECK(count_done(world.put(space, 1000, 1, 64 << 10)) == 1);
  CHECK(world.lookup(space, 1000, 1) == 1);
  CHECK(world.store->stats().disk.evicted == 1);
  CHECK(count_done(world.put(other, 2000, 1, 48 << 10)) == 1);
  CHECK(world.lookup(space, 1000, 1) == 0);
  // Nothing at all can be written: read-only, and tried again when there is room.
  auto lease = world.store->lease(other, keys_of(2000, 1), true, 100 * kNsPerS);
  REQUIRE(lease.value().lease_id != 0);
  world.disk->set_capacity_bytes(world.disk->allocated_bytes());
  CHECK(count_done(world.put(other, 2002, 1, 48 << 10)) == 0);
  CHECK(count_done(world.get(other, 2000, 1, 48 << 10)) == 1);
  CHECK(world.store->stats().disk.health == Health::kDegraded);
  world.disk->set_capacity_bytes(1ull << 30);
  run_for_ns(*world.executor, 6 * kNsPerS);
  CHECK(count_done(world.put(other, 2001, 1, 48 << 10)) == 1);
  CHECK(world.store->stats().disk.health == Health::kOk);
  CHECK(count_done(world.get(other, 2001, 1, 48 << 10)) == 1);
  world.check_consistency();
}

TEST_CASE("writes that fail degrade the tier, host goes on, and writing starts again by itself") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  world.put(space, 0, 4, 64 << 10);
  world.flush();
  world.disk->faults().write_error = 1;
  for (std::uint64_t number = 100; number < 110; ++number) {
    CHECK(count_done(world.put(space, number, 1, 64 << 10)) == 1);
    run_for_ns(*world.executor, 100 * kNsPerMs);
  }
  CHECK(world.store->stats().disk.health == Health::kDegraded);
  CHECK(world.store->stats().disk.health_reason.find("errno=5") != std::string::npos);
  CHECK(count_done(world.get(space, 100, 10, 64 << 10, false)) == 10);
  CHECK(count_done(world.get(space, 0, 4, 64 << 10)) == 4);
  world.disk->faults().write_error = 0;
  run_for_ns(*world.executor, 6 * kNsPerS);
  world.put(space, 200, 1, 64 << 10);
  world.flush();
  CHECK(world.store->stats().disk.health == Health::kOk);
  // What disk declined is offered again at its next use.
  CHECK(count_done(world.get(space, 100, 10, 64 << 10, false)) == 10);
  world.flush();
  CHECK(world.store->stats().disk.blocks == 4 + 10 + 1);
  world.check_consistency();
}

TEST_CASE("reads that fail turn the tier off for a while, and it comes back") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 100, 4096, {}, false);
  world.flush();
  world.disk->faults().read_error = 1;
  for (std::uint64_t number = 0; number < 100; ++number) world.get(space, number, 1, 4096);
  CHECK(world.store->stats().disk.health == Health::kOff);
  CHECK(world.lookup(space, 99, 1) == 0);
  const std::uint64_t num_reads = world.disk->num_reads();
  CHECK(world.get(space, 99, 1, 4096)[0] == Outcome::kMiss);
  CHECK(world.disk->num_reads() == num_reads);
  world.disk->faults().read_error = 0;
  run_for_ns(*world.executor, 6 * kNsPerS);
  CHECK(world.lookup(space, 99, 1) == 1);
  CHECK(count_done(world.get(space, 99, 1, 4096)) == 1);
  CHECK(world.store->stats().disk.health == Health::kOk);
}

TEST_CASE("while no segment can be made the blocks of other sizes are not given up for one") {
  StoreWorld world;
  world.options.disk_bytes = 4 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  for (std::uint64_t number = 0; number < 60; ++number) world.put(space, number, 1, 64 << 10);
  world.flush();
  const std::uint64_t num_blocks = world.store->stats().disk.blocks;
  world.hooks->on_allocate = [] { return refuse("cannot allocate file", EIO); };
  const auto other = world.add_namespace(500'000);
  for (std::uint64_t number = 1000; number < 1020; ++number) {
    world.put(other, number, 1, 500'000);
    run_for_ns(*world.executor, 100 * kNsPerMs);
  }
  CHECK(world.store->stats().disk.blocks + 32 >= num_blocks);  // One segment at most.
  world.hooks->on_allocate = nullptr;
  run_for_ns(*world.executor, 6 * kNsPerS);
  world.put(other, 2000, 1, 500'000);
  world.flush();
  CHECK(world.store->stats().disk.health == Health::kOk);
  world.check_consistency();
}

TEST_CASE("K5: a thousand failing puts write at most ten log lines, with errno and file") {
  for (const bool has_host : {false, true}) {
    CAPTURE(has_host);
    StoreWorld world;
    world.options.host_bytes = has_host ? 2 << 20 : 0;
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(16'000);
    world.put(space, 100'000, 1, 16'000);
    world.flush();
    const std::size_t num_before = world.log.size();
    world.disk->faults().write_error = 1;
    for (std::uint64_t number = 0; number < 1000; ++number) {
      world.put(space, number, 1, 16'000);
      run_for_ns(*world.executor, kNsPerS / 2);
    }
    CHECK(world.log.size() - num_before <= 10);
    CHECK(world.num_log_lines_with("errno=5") >= 1);
  }
}

TEST_CASE("K5: failing segment creations and failing gets over an hour write few log lines") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(16'000);
  world.put(space, 0, 50, 16'000, {}, false);
  world.flush();
  world.hooks->on_allocate = [] { return refuse("cannot allocate file", EIO); };
  world.disk->faults().read_error = 1;
  const std::size_t num_before = world.log.size();
  const auto other = world.add_namespace(50'000);
  for (std::uint64_t number = 0; number < 1000; ++number) {
    world.put(other, 1000 + number, 1, 50'000);
    world.get(space, number % 50, 1, 16'000);
    run_for_ns(*world.executor, 4 * kNsPerS);
  }
  // Over an hour of it: three of a kind, then one in ten minutes.
  CHECK(world.log.size() - num_before <= 40);
  CHECK(world.num_log_lines_with("left out") > 0);
}
