// The simulated disk: one seed is one run, each fault shows, space is counted, and a power loss
// takes what was not synced and nothing else.
#include <doctest/doctest.h>

#include <cerrno>
#include <functional>
#include <set>

#include "testing/payload.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

constexpr std::size_t kFileBytes = 64 * 1024;
constexpr std::size_t kOpBytes = 4096;

struct World {
  explicit World(const SimOptions& options = {})
      : disk(clock, options), directory(disk.make_directory()) {}

  int open(const std::string& name) {
    Result<int> opened = directory->open_file(name, {.is_created = true});
    REQUIRE(opened.is_ok());
    return opened.value();
  }
  int make_file(const std::string& name, const std::vector<std::byte>& bytes) {
    const int fd = open(name);
    REQUIRE(directory->write_at(fd, 0, bytes).is_ok());
    return fd;
  }

  SimClock clock;
  SimDisk disk;
  std::unique_ptr<Directory> directory;
};

SimOptions seeded(std::uint64_t seed) {
  SimOptions options;
  options.seed = seed;
  return options;
}

std::string run_log(std::uint64_t seed) {
  World world(seeded(seed));
  world.disk.faults().read_error = world.disk.faults().torn_write = 0.2;
  world.disk.faults().write_flip = world.disk.faults().misdirected_read = 0.2;
  const std::unique_ptr<IoEngine> engine = world.disk.make_io_engine();
  const int fd = world.open("a");
  std::vector<std::byte> bytes = make_payload({1, 0}, kFileBytes);
  std::vector<IoOp> ops;
  for (std::uint64_t index = 0; index < 64; ++index) {
    IoOp op;
    op.kind = index % 3 == 0 ? IoKind::kRead : IoKind::kWrite;
    op.fd = fd;
    op.user_data = index;
    op.offset_bytes = index % 16 * kOpBytes;
    op.pieces = {std::span(bytes).subspan(op.offset_bytes, kOpBytes)};
    ops.push_back(std::move(op));
  }
  REQUIRE(engine->submit(std::move(ops)).is_ok());
  std::string log;
  std::vector<IoResult> results;
  for (int step = 0; step < 40; ++step) {
    world.clock.advance_to(world.disk.next_event_ns());
    world.disk.run_due();
    engine->poll(results);
    for (const IoResult& result : results) {
      log += std::to_string(world.clock.now_ns()) + " " + std::to_string(result.user_data) + " " +
             result.status.to_string() + "\n";
    }
    results.clear();
  }
  world.disk.crash();
  for (const auto& [name, stored] : world.disk.files()) {
    log += name;
    for (const std::byte byte : stored) log += static_cast<char>(byte);
  }
  return log;
}

TEST_CASE("the same seed is the same run and another seed another one") {
  CHECK(run_log(1) == run_log(1));
  CHECK(run_log(1) != run_log(2));
}

struct Trial {
  Status read_status;
  Status write_status;
  Status sync_status;
  Status allocate_status;
  bool is_read_right = false;
  bool is_stored_right = false;    // The written place holds the new bytes.
  bool is_rest_untouched = false;  // All other places hold the old ones.
};

// Reads one block of a file, overwrites it, and syncs, with `faults`.
Trial run_trial(std::uint64_t seed, const SimFaults& faults) {
  World world(seeded(seed));
  const std::vector<std::byte> old_bytes = make_payload({1, 0}, kFileBytes);
  const int fd = world.make_file("a", old_bytes);
  world.disk.faults() = faults;
  constexpr std::size_t kPlace = 5 * kOpBytes;
  Trial trial;
  std::vector<std::byte> target(kOpBytes);
  trial.read_status = world.directory->read_at(fd, kPlace, target);
  trial.is_read_right = are_equal(target, std::span(old_bytes).subspan(kPlace, kOpBytes));
  const std::vector<std::byte> new_bytes = make_payload({1, 1}, kOpBytes);
  trial.write_status = world.directory->write_at(fd, kPlace, new_bytes);
  std::vector<std::byte> stored = world.disk.files()["a"];
  trial.is_stored_right = are_equal(std::span(stored).subspan(kPlace, kOpBytes), new_bytes);
  std::copy_n(old_bytes.begin() + kPlace, kOpBytes, stored.begin() + kPlace);
  trial.is_rest_untouched = are_equal(stored, old_bytes);
  trial.sync_status = world.directory->sync_file(fd);
  trial.allocate_status = world.directory->allocate(fd, 0, kFileBytes);
  return trial;
}

void check_each(const SimFaults& faults, const std::function<bool(const Trial&)>& is_visible) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    CHECK(is_visible(run_trial(seed, faults)));
  }
}

TEST_CASE("without faults everything is right") {
  check_each({}, [](const Trial& trial) {
    return trial.read_status.is_ok() && trial.write_status.is_ok() && trial.sync_status.is_ok() &&
           trial.allocate_status.is_ok() && trial.is_read_right && trial.is_stored_right &&
           trial.is_rest_untouched;
  });
}

TEST_CASE("each loud fault is reported") {
  check_each({.read_error = 1},
             [](const Trial& trial) { return trial.read_status.os_errno() == EIO; });
  check_each({.write_error = 1}, [](const Trial& trial) {
    return trial.write_status.os_errno() == EIO && !trial.is_stored_right &&
           trial.is_rest_untouched;
  });
  check_each({.short_transfer = 1}, [](const Trial& trial) {
    return trial.read_status.code() == StatusCode::kIoError && trial.read_status.os_errno() == 0 &&
           trial.write_status.code() == StatusCode::kIoError && !trial.is_stored_right;
  });
  check_each({.torn_write = 1}, [](const Trial& trial) {
    return trial.write_status.os_errno() == EIO && !trial.is_stored_right &&
           trial.is_rest_untouched;
  });
  check_each({.sync_error = 1},
             [](const Trial& trial) { return trial.sync_status.os_errno() == EIO; });
  check_each({.allocate_unsupported = 1}, [](const Trial& trial) {
    return trial.allocate_status.code() == StatusCode::kUnsupported;
  });
}

TEST_CASE("each silent fault changes bytes and reports nothing") {
  check_each({.read_flip = 1}, [](const Trial& trial) {
    return trial.read_status.is_ok() && !trial.is_read_right && trial.is_stored_right;
  });
  check_each({.write_flip = 1}, [](const Trial& trial) {
    return trial.write_status.is_ok() && !trial.is_stored_right && trial.is_rest_untouched;
  });
  check_each({.misdirected_read = 1},
             [](const Trial& trial) { return trial.read_status.is_ok() && !trial.is_read_right; });
  check_each({.misdirected_write = 1}, [](const Trial& trial) {
    return trial.write_status.is_ok() && !trial.is_stored_right && !trial.is_rest_untouched;
  });
}

TEST_CASE("synced bytes of synced names survive every power loss") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    World world(seeded(seed));
    const std::vector<std::byte> bytes = make_payload({seed, 0}, kFileBytes);
    const int fd = world.make_file("a", bytes);
    REQUIRE(world.directory->sync_file(fd).is_ok());
    REQUIRE(world.directory->sync().is_ok());
    // What comes later may get lost, and must not touch the rest.
    REQUIRE(world.directory->write_at(fd, kFileBytes, make_payload({seed, 1}, 3000)).is_ok());
    world.disk.crash();
    REQUIRE(world.disk.files().contains("a"));
    const std::vector<std::byte>& left = world.disk.files()["a"];
    REQUIRE(left.size() >= kFileBytes);
    CHECK(are_equal(std::span(left).first(kFileBytes), bytes));
    // And the loss itself is final.
    const std::vector<std::byte> after = left;
    world.disk.crash();
    CHECK(are_equal(world.disk.files()["a"], after));
  }
}

TEST_CASE("unsynced sectors are old or new, and over many seeds both and mixed") {
  std::set<std::size_t> numbers_of_new;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    World world(seeded(seed));
    const std::vector<std::byte> old_bytes = make_payload({1, 0}, 8192);
    const std::vector<std::byte> new_bytes = make_payload({1, 1}, 8192);
    const int fd = world.make_file("a", old_bytes);
    REQUIRE(world.directory->sync_file(fd).is_ok());
    REQUIRE(world.directory->sync().is_ok());
    REQUIRE(world.directory->write_at(fd, 0, new_bytes).is_ok());
    world.disk.crash();
    const std::vector<std::byte>& left = world.disk.files()["a"];
    REQUIRE(left.size() == 8192);
    std::size_t num_new = 0;
    for (std::size_t place = 0; place < 8192; place += 512) {
      const auto sector = std::span(left).subspan(place, 512);
      const bool is_new = are_equal(sector, std::span(new_bytes).subspan(place, 512));
      const bool is_old = are_equal(sector, std::span(old_bytes).subspan(place, 512));
      CHECK(is_new != is_old);
      if (is_new) ++num_new;
    }
    numbers_of_new.insert(num_new);
  }
  CHECK(numbers_of_new.contains(0));
  CHECK(numbers_of_new.contains(16));
  CHECK(numbers_of_new.size() > 4);
}

TEST_CASE("a file that was synced but whose name was not may vanish") {
  std::set<bool> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seeded(seed));
    const int fd = world.make_file("a", make_payload({1, 0}, 512));
    REQUIRE(world.directory->sync_file(fd).is_ok());
    world.disk.crash();
    seen.insert(world.disk.files().contains("a"));
    if (world.disk.files().contains("a")) {
      CHECK(are_equal(world.disk.files()["a"], make_payload({1, 0}, 512)));
    }
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("a rename that was not synced is done or not, never half") {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seeded(seed));
    for (const std::uint64_t generation : {0, 1}) {
      const int fd =
          world.make_file(generation == 0 ? "b" : "a", make_payload({1, generation}, 512));
      REQUIRE(world.directory->sync_file(fd).is_ok());
    }
    REQUIRE(world.directory->sync().is_ok());
    REQUIRE(world.directory->rename_file("a", "b").is_ok());
    world.disk.crash();
    auto& files = world.disk.files();
    const bool is_done = !files.contains("a");
    REQUIRE(files.contains("b"));
    CHECK(are_equal(files["b"], make_payload({1, is_done ? 1u : 0u}, 512)));
    seen.insert(is_done ? "done" : "not done");
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("a sync covers what was written before it began") {
  std::set<bool> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seeded(seed));
    const std::unique_ptr<IoEngine> engine = world.disk.make_io_engine();
    const int fd = world.make_file("a", make_payload({1, 0}, 512));
    REQUIRE(world.directory->sync().is_ok());
    IoOp op;
    op.kind = IoKind::kSync;
    op.fd = fd;
    REQUIRE(engine->submit({op}).is_ok());
    REQUIRE(world.directory->write_at(fd, 0, make_payload({1, 1}, 512)).is_ok());
    world.clock.advance_to(world.disk.next_event_ns());
    world.disk.run_due();
    world.disk.crash();
    const bool is_new = are_equal(world.disk.files()["a"], make_payload({1, 1}, 512));
    CHECK((is_new || are_equal(world.disk.files()["a"], make_payload({1, 0}, 512))));
    seen.insert(is_new);
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("a killed process keeps what it wrote and frees its lock and descriptors") {
  World world;
  const std::vector<std::byte> bytes = make_payload({1, 0}, 5000);
  const int fd = world.make_file("a", bytes);
  REQUIRE(world.directory->lock("lock", "pid=1").is_ok());
  world.disk.crash(true);
  CHECK(are_equal(world.disk.files()["a"], bytes));
  CHECK(world.directory->stat_fd(fd).status().code() == StatusCode::kClosed);
  CHECK(world.directory->list_files().status().code() == StatusCode::kClosed);
  CHECK_FALSE(world.directory->is_present());
  const std::unique_ptr<Directory> next = world.disk.make_directory();
  CHECK(next->lock("lock", "pid=2").is_ok());
  CHECK(next->stat_fd(fd).status().os_errno() == EBADF);
}

TEST_CASE("a kill is no sync, so that the power may still be lost after it") {
  std::set<bool> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seeded(seed));
    world.make_file("a", make_payload({1, 0}, 512));
    world.disk.crash(true);
    CHECK(world.disk.files().contains("a"));
    world.disk.crash();
    seen.insert(world.disk.files().contains("a"));
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("space is what was written or reserved, in blocks, until the last descriptor is closed") {
  SimOptions options;
  options.capacity_bytes = 64 * 1024;
  World world(options);
  const int fd = world.open("a");
  REQUIRE(world.directory->truncate(fd, 1 << 20).is_ok());
  CHECK(world.disk.allocated_bytes() == 0);
  REQUIRE(world.directory->write_at(fd, 4095, make_payload({1, 0}, 2)).is_ok());
  CHECK(world.disk.allocated_bytes() == 8192);
  REQUIRE(world.directory->allocate(fd, 0, 32 * 1024).is_ok());
  CHECK(world.disk.allocated_bytes() == 32 * 1024);
  CHECK(world.directory->free_bytes().value() == 32 * 1024);
  const Status full = world.directory->write_at(fd, 40 * 1024, make_payload({1, 0}, 33 * 1024));
  CHECK(full.code() == StatusCode::kNoSpace);
  CHECK(world.directory->allocate(fd, 0, 65 * 1024).code() == StatusCode::kNoSpace);
  // What is reserved can be written on a full disk.
  world.disk.set_capacity_bytes(0);
  CHECK(world.directory->free_bytes().value() == 0);
  CHECK(world.directory->write_at(fd, 0, make_payload({1, 0}, 32 * 1024)).is_ok());
  REQUIRE(world.directory->remove_file("a").is_ok());
  CHECK(world.disk.allocated_bytes() == 32 * 1024);
  world.directory->close_file(fd);
  CHECK(world.disk.allocated_bytes() == 0);
}

TEST_CASE("bytes that a test plants are seen and survive a power loss") {
  World world;
  const int fd = world.make_file("a", make_payload({1, 0}, 1024));
  REQUIRE(world.directory->sync_file(fd).is_ok());
  REQUIRE(world.directory->sync().is_ok());
  world.disk.files()["a"][700] ^= std::byte{1};
  world.disk.files()["foreign"] = make_payload({2, 0}, 100);
  world.disk.crash();
  CHECK(world.disk.files()["a"][700] == (make_payload({1, 0}, 1024)[700] ^ std::byte{1}));
  CHECK(world.disk.files().contains("foreign"));
  world.disk.files().erase("a");
  world.directory = world.disk.make_directory();
  CHECK(world.directory->stat_file("a").status().code() == StatusCode::kNotFound);
}

TEST_CASE("the disk counts reads, writes and written bytes") {
  World world;
  const int fd = world.make_file("a", make_payload({1, 0}, 1000));
  std::vector<std::byte> target(10);
  REQUIRE(world.directory->read_at(fd, 0, target).is_ok());
  CHECK(world.disk.num_writes() == 1);
  CHECK(world.disk.num_reads() == 1);
  CHECK(world.disk.written_bytes() == 1000);
}

}  // namespace
}  // namespace kvtier::testing
