// A store that tells others of itself: while it runs, when it closes, and where it cannot.
#include "store/live_publisher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "disk/live_writer.h"
#include "format/live_file.h"
#include "real_store.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr TimeNs kIntervalNs = 2 * kNsPerMs;

struct PublishedStore : RealStore {
  PublishedStore() { REQUIRE(open().is_ok()); }

  LivePublisher publisher{options.path, [this](const char* level, const std::string& text) {
                            const std::lock_guard<std::mutex> lock(lines_mutex);
                            lines.push_back(std::string(level) + ": " + text);
                          }};

  std::string text() {
    auto read = disk::read_live_file(options.path);
    return read.is_ok() ? std::move(read).value() : read.status().to_string();
  }
  bool comes_to_say(const std::string& line) {
    return comes_about(
        [&] { return ("\n" + text()).find("\n" + line + "\n") != std::string::npos; });
  }
  bool comes_about(const std::function<bool()>& is_so) {
    for (int i = 0; i < 10'000 && !is_so(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return is_so();
  }

  std::mutex lines_mutex;
  std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("a store's counters come to its live file, and at the end that it closes") {
  PublishedStore world;
  world.publisher.note_line("info", "not worth a look");
  world.publisher.note_line("warning", "the disk is slow");
  world.publisher.start(world.store, kIntervalNs);
  CHECK(world.comes_to_say("stats.hit_blocks=0"));
  CHECK(world.comes_to_say("pid=" + std::to_string(::getpid())));
  CHECK(world.comes_to_say("events.0.text=\"the disk is slow\""));
  const std::uint32_t space = world.add_namespace(4096);
  world.put(space, 0, 5, 4096);
  world.get(space, 0, 5, 4096);
  CHECK(world.comes_to_say("stats.hit_blocks=5"));
  CHECK(world.comes_to_say("state=\"open\""));
  const auto keys = keys_of(0, 5);
  REQUIRE(world.store->lease(space, keys, true, kNsPerS * 60, "me").is_ok());
  CHECK(world.comes_to_say("holders.0.owner=\"me\""));
  world.publisher.stop();
  CHECK(world.comes_to_say("state=\"closing\""));
  CHECK(world.text().find("not worth a look") == std::string::npos);
  CHECK(world.publisher.num_failures() == 0);
  CHECK(world.publisher.num_published() >= 2);
}

TEST_CASE("an idle store does not write again and again") {
  PublishedStore world;
  world.publisher.start(world.store, kIntervalNs);
  CHECK(world.comes_about([&] { return world.publisher.num_published() > 0; }));
  // Its counters settle soon; then nothing is new until the next heartbeat.
  std::uint64_t num_before = 0;
  CHECK(world.comes_about([&] {
    num_before = world.publisher.num_published();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return world.publisher.num_published() == num_before;
  }));
  world.publisher.stop();
  CHECK(world.publisher.num_published() == num_before + 1);
}

TEST_CASE("a place that cannot be written is said once, and blocks are not concerned") {
  PublishedStore world;
  const std::string name = world.options.path + "/" + format::kLiveFileName;
  REQUIRE(::mkdir(name.c_str(), 0700) == 0);
  world.publisher.start(world.store, kIntervalNs);
  CHECK(world.comes_about([&] { return world.publisher.num_failures() > 3; }));
  world.publisher.stop();
  CHECK(world.publisher.num_published() == 0);
  const std::lock_guard<std::mutex> lock(world.lines_mutex);
  REQUIRE(world.lines.size() == 1);
  CHECK(world.lines[0].starts_with("warning: other processes cannot see the store's state: "));
  const std::uint32_t space = world.add_namespace(4096);
  CHECK(world.put(space, 0, 5, 4096) == std::vector(5, Outcome::kDone));
}

TEST_CASE("the live file is counted under the cap from the start, and wiped with the rest") {
  RealStore world;
  world.options.disk_bytes = 1 << 20;
  world.options.publish_interval_ns = kIntervalNs;
  world.options.is_deleted_on_exit = true;
  REQUIRE(world.open().is_ok());
  LivePublisher publisher(world.options.path, [](const char*, const std::string&) {});
  publisher.start(world.store, kIntervalNs);
  const std::uint32_t space = world.add_namespace(4096);
  world.put(space, 0, 400, 4096);
  (void)world.store->flush(30 * kNsPerS).is_ok();
  publisher.stop();
  std::uint64_t allocated_bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(world.options.path)) {
    struct stat stat{};
    REQUIRE(::stat(file.path().c_str(), &stat) == 0);
    allocated_bytes += static_cast<std::uint64_t>(stat.st_blocks) * 512;
  }
  CHECK(allocated_bytes <= world.options.disk_bytes);
  CHECK(std::filesystem::exists(world.options.path + "/" + format::kLiveFileName));
  REQUIRE(world.store->close(30 * kNsPerS).is_ok());
  CHECK_FALSE(std::filesystem::exists(world.options.path + "/" + format::kLiveFileName));
}
