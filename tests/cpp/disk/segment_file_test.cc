// Segment files: made durably, scanned with everything that can be wrong with them.
#include "disk/segment_file.h"

#include <doctest/doctest.h>

#include <set>

#include "base/random.h"
#include "testing/sim_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

struct FileWorld {
  FileWorld() : disk(clock, SimOptions{}), directory(disk.make_directory()) {}
  SimClock clock;
  SimDisk disk;
  std::unique_ptr<Directory> directory;
};

format::SegmentHeader make(FileWorld& world, std::uint32_t num_slots, std::uint32_t num_parts) {
  const auto header = format::plan_segment(Digest128{}, 5, num_slots, 4096, num_parts, 4096);
  auto made = disk::create_segment_file(*world.directory, header, true);
  REQUIRE(made.is_ok());
  CHECK(made.value().allocated_bytes >= header.file_bytes());
  world.directory->close_file(made.value().fd);
  return header;
}

void write_entry(FileWorld& world, const format::SegmentHeader& header, std::uint32_t slot) {
  format::SlotEntry entry;
  entry.key.bytes[0] = static_cast<std::uint8_t>(slot + 1);
  entry.generation = slot + 1;
  entry.length_bytes = 100 + slot;
  entry.checksums.assign(header.num_parts, slot);
  std::vector<std::byte> bytes(header.entry_bytes());
  format::encode_slot_entry(&entry, bytes);
  auto fd = world.directory->open_file(format::segment_file_name(5), OpenFlags{});
  REQUIRE(fd.is_ok());
  REQUIRE(
      world.directory
          ->write_at(fd.value(), header.table_offset_bytes + header.entry_offset_bytes(slot), bytes)
          .is_ok());
  world.directory->close_file(fd.value());
}

}  // namespace

TEST_CASE("a scan finds each entry once, whatever the number of slots and parts") {
  for (const std::uint32_t num_parts : {1u, 3u, 60u, 600u, 4096u}) {
    for (const std::uint32_t num_slots : {1u, 63u, 64u, 65u, 200u}) {
      CAPTURE(num_parts);
      CAPTURE(num_slots);
      FileWorld world;
      const auto header = make(world, num_slots, num_parts);
      std::set<std::uint32_t> written;
      Random random(num_slots * 10'000 + num_parts);
      for (std::uint32_t slot = 0; slot < num_slots; ++slot) {
        if (random.below(3) != 0 && slot + 1 != num_slots) continue;
        write_entry(world, header, slot);
        written.insert(slot);
      }
      std::set<std::uint32_t> found;
      auto scan = disk::scan_segment_file(*world.directory, format::segment_file_name(5),
                                          [&](std::uint32_t slot, format::SlotEntry& entry) {
                                            CHECK(found.insert(slot).second);
                                            CHECK(entry.generation == slot + 1);
                                            CHECK(entry.checksums.size() == num_parts);
                                          });
      REQUIRE_MESSAGE(scan.is_ok(), scan.status().to_string());
      CHECK(found == written);
      CHECK(scan.value().num_used == written.size());
      CHECK(scan.value().num_damaged == 0);
    }
  }
}

TEST_CASE("a new segment survives power loss with an empty table") {
  FileWorld world;
  const auto header = make(world, 50, 1);
  world.disk.crash(false);
  world.directory = world.disk.make_directory();
  auto read = disk::read_segment_header(*world.directory, format::segment_file_name(5));
  REQUIRE(read.is_ok());
  CHECK(read.value().num_slots == 50);
  CHECK(world.disk.files().at(format::segment_file_name(5)).size() == header.file_bytes());
}

TEST_CASE("files that are too short are corrupt, not an error of the device") {
  for (const std::size_t length_bytes : {0, 1, 4095, 4096, 5000}) {
    CAPTURE(length_bytes);
    FileWorld world;
    make(world, 100, 1);
    world.disk.files().at(format::segment_file_name(5)).resize(length_bytes);
    const auto nothing = [](std::uint32_t, format::SlotEntry&) { FAIL("no entry is there"); };
    const auto scan =
        disk::scan_segment_file(*world.directory, format::segment_file_name(5), nothing);
    CHECK_FALSE(scan.is_ok());
    if (length_bytes < 4096) {
      const auto read = disk::read_segment_header(*world.directory, format::segment_file_name(5));
      CHECK(read.status().code() == StatusCode::kCorrupt);
    }
  }
}

TEST_CASE("a segment file is never made over another") {
  FileWorld world;
  const auto header = make(world, 10, 1);
  const auto bytes = world.disk.files().at(format::segment_file_name(5));
  CHECK_FALSE(disk::create_segment_file(*world.directory, header, true).is_ok());
  CHECK(world.disk.files().at(format::segment_file_name(5)) == bytes);
}

TEST_CASE("a segment file is unfinished until its header is written") {
  FileWorld world;
  make(world, 100, 1);
  const std::string name = format::segment_file_name(5);
  CHECK_FALSE(disk::is_unfinished_segment(*world.directory, name));
  std::vector<std::byte>& bytes = world.disk.files().at(name);
  std::fill_n(bytes.begin(), format::kSegmentHeaderBytes, std::byte{0});
  CHECK(disk::is_unfinished_segment(*world.directory, name));
  bytes[format::kSegmentHeaderBytes] = std::byte{1};  // Something was committed.
  CHECK_FALSE(disk::is_unfinished_segment(*world.directory, name));
  bytes.resize(0);
  CHECK(disk::is_unfinished_segment(*world.directory, name));
  CHECK_FALSE(disk::is_unfinished_segment(*world.directory, "segment-00000006.kvtier"));
}
