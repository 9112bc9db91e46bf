// Superblock and namespace tables: written in turn, whole at any time, kept apart from other
// versions.
#include "disk/store_directory.h"

#include <doctest/doctest.h>

#include "format/live_file.h"
#include "testing/sim_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

format::NamespaceRecord record_of(std::uint32_t index) {
  format::NamespaceRecord record;
  record.namespace_index = index;
  record.id.bytes[3] = static_cast<std::uint8_t>(index + 1);
  record.description = "{\"index\": " + std::to_string(index) + "}";
  return record;
}

}  // namespace

TEST_CASE("what was saved is loaded, whichever copy a crash spoils") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    SimClock clock;
    SimOptions sim;
    sim.seed = seed;
    SimDisk disk(clock, sim);
    Digest128 store_id;
    std::uint32_t num_saved = 0;
    {
      auto directory = disk.make_directory();
      disk::StoreDirectory store(*directory);
      REQUIRE(store.load().is_ok());
      CHECK(store.is_fresh());
      store_id = store.superblock().store_id;
      REQUIRE(store.save_superblock(false, 0).is_ok());
      for (; num_saved < seed % 7; ++num_saved) {
        REQUIRE(store.add_namespace(record_of(num_saved)).is_ok());
        REQUIRE(store.save_superblock(false, num_saved).is_ok());
      }
      // The next writes are cut short: what was saved before must stay.
      disk.faults().torn_write = 1;
      CHECK_FALSE(store.add_namespace(record_of(num_saved)).is_ok());
      CHECK_FALSE(store.save_superblock(true, 1000).is_ok());
      CHECK(store.namespaces().records.size() == num_saved);
    }
    disk.faults() = SimFaults{};
    disk.crash(seed % 2 == 0);
    auto directory = disk.make_directory();
    disk::StoreDirectory store(*directory);
    REQUIRE(store.load().is_ok());
    CHECK_FALSE(store.is_fresh());
    CHECK(store.superblock().store_id == store_id);
    CHECK_FALSE(store.superblock().is_clean);
    CHECK(store.namespaces().records.size() == num_saved);
    CHECK(store.add_namespace(record_of(num_saved)).is_ok());
  }
}

TEST_CASE("the lock is exclusive and names its holder") {
  SimClock clock;
  SimDisk disk(clock, SimOptions{});
  auto one = disk.make_directory();
  auto other = disk.make_directory();
  disk::StoreDirectory first(*one);
  disk::StoreDirectory second(*other);
  REQUIRE(first.lock(clock, 0).is_ok());
  const Status busy = second.lock(clock, 0);
  CHECK(busy.code() == StatusCode::kBusy);
  CHECK(busy.message().find("pid ") == 0);
  first.unlock();
  CHECK(second.lock(clock, 0).is_ok());
}

TEST_CASE("removing all files leaves foreign ones and the lock") {
  SimClock clock;
  SimDisk disk(clock, SimOptions{});
  auto directory = disk.make_directory();
  disk::StoreDirectory store(*directory);
  REQUIRE(store.lock(clock, 0).is_ok());
  REQUIRE(store.load().is_ok());
  REQUIRE(store.save_superblock(false, 0).is_ok());
  REQUIRE(store.add_namespace(record_of(0)).is_ok());
  disk.files()["segment-00000001.kvtier"] = std::vector<std::byte>(100);
  disk.files()["kvtier.superblock.other-version"] = std::vector<std::byte>(100);
  disk.files()["kvtier.txt"] = std::vector<std::byte>(100);
  disk.files()["segment-1.kvtier"] = std::vector<std::byte>(100);
  REQUIRE(store.remove_all_files().is_ok());
  std::vector<std::string> names;
  for (const auto& [name, bytes] : disk.files()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"kvtier.lock", "kvtier.txt", "segment-1.kvtier"});
}

TEST_CASE("a table that grows too large is refused and the old one stays") {
  SimClock clock;
  SimDisk disk(clock, SimOptions{});
  auto directory = disk.make_directory();
  disk::StoreDirectory store(*directory);
  REQUIRE(store.load().is_ok());
  REQUIRE(store.add_namespace(record_of(0)).is_ok());
  format::NamespaceRecord huge = record_of(1);
  huge.description = std::string(format::kNamespaceTableBytesMax, 'x');
  CHECK(store.add_namespace(huge).code() == StatusCode::kExhausted);
  CHECK(store.namespaces().records.size() == 1);
  disk::StoreDirectory again(*directory);
  REQUIRE(again.load().is_ok());
  CHECK(again.namespaces().records.size() == 1);
}

TEST_CASE("direct I/O is probed with a real write and leaves no file") {
  SimClock clock;
  SimDisk disk(clock, SimOptions{});
  auto directory = disk.make_directory();
  CHECK(disk::probe_direct(*directory).is_direct);
  disk.faults().write_error = 1;
  const disk::DirectProbe failed = disk::probe_direct(*directory);
  CHECK_FALSE(failed.is_direct);
  CHECK(failed.reason.find("errno=5") != std::string::npos);
  disk.faults() = SimFaults{};
  disk.faults().read_flip = 1;
  CHECK_FALSE(disk::probe_direct(*directory).is_direct);
  CHECK(disk.files().empty());
}

TEST_CASE("what an earlier run told of itself is gone once a later one looked at the files") {
  SimClock clock;
  SimDisk disk(clock, SimOptions{});
  auto directory = disk.make_directory();
  disk::StoreDirectory store(*directory);
  REQUIRE(store.load().is_ok());
  const std::uint64_t bytes_before = store.fixed_bytes();
  auto created = directory->open_file(format::kLiveFileName, OpenFlags{true, false, false});
  REQUIRE(created.is_ok());
  directory->close_file(created.value());
  CHECK(store.fixed_bytes() == bytes_before);
  REQUIRE(store.list().is_ok());
  CHECK_FALSE(directory->stat_file(format::kLiveFileName).is_ok());
}
