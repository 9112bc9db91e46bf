// A store that tells others of itself: while it runs, when it closes, and where it cannot.
#include "store/live_publisher.h"

#include "disk/live_file_access.h"
#include "format/live_file.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr TimeNs kIntervalNs = 250 * kNsPerMs;

struct LiveWorld : StoreWorld {
  explicit LiveWorld(std::uint64_t seed = 1) : StoreWorld(seed) {
    options.publish_interval_ns = kIntervalNs;
    REQUIRE(open().is_ok());
  }

  void run(TimeNs time_ns) { run_for_ns(*executor, time_ns); }

  std::string text() {
    auto directory = disk->make_directory();
    auto opened = directory->open_file(format::kLiveFileName, OpenFlags{});
    if (!opened.is_ok()) return {};
    std::vector<std::byte> bytes(directory->stat_fd(opened.value()).value().length_bytes);
    REQUIRE(directory->read_at(opened.value(), 0, bytes).is_ok());
    directory->close_file(opened.value());
    auto decoded = format::decode_live_file(bytes);
    REQUIRE_MESSAGE(decoded.is_ok(), decoded.status().to_string());
    return std::move(decoded).value();
  }
  bool says(const std::string& line) {
    return ("\n" + text()).find("\n" + line + "\n") != std::string::npos;
  }
};

}  // namespace

TEST_CASE("a store's counters come to its live file, and at the end that it closes") {
  LiveWorld world;
  world.run(kNsPerS);
  CHECK(world.says("stats.hit_blocks=0"));
  CHECK(world.says("state=\"open\""));
  const std::uint32_t space = world.add_namespace(4096);
  world.put(space, 0, 5, 4096);
  world.get(space, 0, 5, 4096);
  const auto keys = keys_of(0, 5);
  REQUIRE(world.store->lease(space, keys, true, kNsPerS * 60, "me").is_ok());
  CHECK(world.says("stats.hit_blocks=0"));  // Not before its time.
  world.run(kIntervalNs + kNsPerS);
  CHECK(world.says("stats.hit_blocks=5"));
  CHECK(world.says("holders.0.owner=\"me\""));
  const std::uint64_t num_updates = world.store->stats().live_updates;
  CHECK(num_updates >= 2);
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  CHECK(world.says("state=\"closing\""));
  CHECK(world.says("stats.hit_blocks=5"));
  CHECK(world.text().find("holders.") == std::string::npos);
}

TEST_CASE("an idle store tells nothing but that it lives") {
  LiveWorld world;
  world.run(5 * kNsPerS);
  const std::uint64_t num_before = world.store->stats().live_updates;
  world.run(20 * kNsPerS);
  CHECK(world.store->stats().live_updates == num_before);
  world.run(store::LivePublisher::kHeartbeatNs);
  CHECK(world.store->stats().live_updates == num_before + 1);
}

TEST_CASE("warnings are told, the newest first, and information is not") {
  LiveWorld world;
  world.run(kNsPerS);
  CHECK(world.text().find("events.") == std::string::npos);
  const std::uint32_t space = world.add_namespace(4096);
  world.disk->set_stalled(true);
  world.put(space, 0, 5, 4096);
  world.run(10 * kNsPerS);
  world.disk->set_stalled(false);
  world.run(2 * kNsPerS);
  CHECK(world.text().find("events.0.text=\"disk tier is stalled") != std::string::npos);
  CHECK(world.text().find("works again") == std::string::npos);
  CHECK(world.says("stats.disk.health=\"ok\""));
}

TEST_CASE("a file that cannot be written is said once, and blocks are not concerned") {
  LiveWorld world;
  world.hooks->on_open = [](const std::string& name, const OpenFlags&) {
    return name == format::kLiveFileName ? Status(StatusCode::kIoError, "no", EACCES)
                                         : Status::ok();
  };
  world.run(30 * kNsPerS);
  // Not four times a second.
  CHECK(world.store->stats().live_failures > 3);
  CHECK(world.store->stats().live_failures < 10);
  CHECK(world.num_log_lines_with("other processes cannot see the store's state") == 1);
  const std::uint32_t space = world.add_namespace(4096);
  CHECK(count_done(world.put(space, 0, 5, 4096)) == 5);
  world.flush();
  CHECK(world.store->stats().disk.health == Health::kOk);
  CHECK(world.store->stats().disk.blocks == 5);
}

TEST_CASE("a live file that cannot be written for long makes no tier stalled") {
  LiveWorld world;
  const std::uint32_t space = world.add_namespace(4096);
  world.put(space, 0, 5, 4096);
  world.flush();
  REQUIRE(world.restart().is_ok());
  world.disk->set_stalled(true);
  // Only the live file's own task is under way, and hangs.
  world.run(30 * kNsPerS);
  CHECK(world.store->stats().disk.health == Health::kOk);
  world.disk->set_stalled(false);
  world.run(kNsPerS);
  const std::uint32_t again = world.add_namespace(4096);
  CHECK(count_done(world.get(again, 0, 5, 4096)) == 5);
}

TEST_CASE("a store that is deleted at its end leaves no live file behind") {
  LiveWorld world;
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  CHECK_FALSE(world.text().empty());
  world.store.reset();
  world.options.is_deleted_on_exit = true;
  REQUIRE(world.open().is_ok());
  CHECK(world.text().empty());  // What the earlier run told is not true any more.
  world.run(kNsPerS);
  CHECK_FALSE(world.text().empty());
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  CHECK(world.text().empty());
}

TEST_CASE("a store that tells nobody has no live file") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  run_for_ns(*world.executor, 5 * kNsPerS);
  CHECK(world.store->stats().live_updates == 0);
  CHECK_FALSE(world.disk->make_directory()->stat_file(format::kLiveFileName).is_ok());
}

TEST_CASE("with the live file all that lies there stays under the cap, also a small one") {
  LiveWorld world;
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  world.store.reset();
  world.options.disk_bytes = 1 << 20;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(4096);
  for (std::uint64_t i = 0; i < 400; i += 10) world.put(space, i, 10, 4096);
  world.flush();
  world.run(kNsPerS);
  std::uint64_t allocated_bytes = 0;
  auto directory = world.disk->make_directory();
  const std::vector<std::string> names = directory->list_files().value();
  for (const std::string& name : names) {
    allocated_bytes += directory->stat_file(name).value().allocated_bytes;
  }
  CHECK(allocated_bytes <= world.options.disk_bytes);
  CHECK(world.store->stats().disk.blocks > 100);
}
