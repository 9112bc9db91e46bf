// The disk engine on the simulated disk: transfers, retries, descriptors, removal.
#include "disk/disk_engine.h"

#include <doctest/doctest.h>

#include <map>

#include "disk/directory_double.h"
#include "testing/payload.h"
#include "testing/sim_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kSlotBytes = 8192;

class EngineWorld {
 public:
  explicit EngineWorld(std::uint32_t open_files_max = 128, std::uint64_t seed = 1) {
    SimOptions sim;
    sim.seed = seed;
    disk = std::make_unique<SimDisk>(clock, sim);
    hooks = std::make_shared<DirectoryHooks>();
    directory = std::make_unique<DirectoryDouble>(disk->make_directory(), hooks);
    io_engine = disk->make_io_engine();
    disk::DiskEngineOptions options;
    options.open_files_max = open_files_max;
    engine = std::make_unique<disk::DiskEngine>(*directory, *io_engine, clock, options);
  }
  ~EngineWorld() { (void)engine->stop(clock.now_ns() + kNsPerS); }

  static format::SegmentHeader header(std::uint32_t segment_id, std::uint32_t num_slots = 8) {
    return format::plan_segment(Digest128{}, segment_id, num_slots, kSlotBytes, 1, 4096);
  }

  /// Lets the disk work until every job has its result.
  std::map<disk::DiskJobId, disk::DiskResult> finish_all() {
    std::map<disk::DiskJobId, disk::DiskResult> results;
    while (engine->num_jobs() > 0) {
      std::vector<disk::DiskResult> polled;
      engine->poll(polled);
      for (const auto& result : polled) {
        REQUIRE(results.emplace(result.job_id, result).second);  // Each ends once.
      }
      if (engine->num_jobs() == 0) break;
      const TimeNs next_ns = disk->next_event_ns();
      REQUIRE(next_ns < kNeverNs);
      clock.advance_to(next_ns);
      disk->run_due();
    }
    return results;
  }
  Status finish(disk::DiskJobId job_id) { return finish_all().at(job_id).status; }

  SimClock clock;
  std::shared_ptr<DirectoryHooks> hooks;
  std::unique_ptr<SimDisk> disk;
  std::unique_ptr<Directory> directory;
  std::unique_ptr<IoEngine> io_engine;
  std::unique_ptr<disk::DiskEngine> engine;
};

}  // namespace

TEST_CASE("blocks written to slots of several segments are read back from them") {
  EngineWorld world;
  for (std::uint32_t segment = 1; segment <= 3; ++segment) {
    REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(segment))).is_ok());
  }
  std::vector<AlignedBytes> buffers;
  for (std::uint64_t i = 0; i < 24; ++i) {
    buffers.emplace_back(kSlotBytes);
    fill_payload({i, 0}, 0, buffers.back().span());
    world.engine->write_block(1 + static_cast<std::uint32_t>(i) / 8,
                              static_cast<std::uint32_t>(i) % 8, buffers.back().span());
  }
  for (const auto& [job_id, result] : world.finish_all()) CHECK(result.status.is_ok());
  for (std::uint64_t i = 0; i < 24; ++i) {
    AlignedBytes target(kSlotBytes);
    const auto job_id = world.engine->read_block(1 + static_cast<std::uint32_t>(i) / 8,
                                                 static_cast<std::uint32_t>(i) % 8, target.span());
    REQUIRE(world.finish(job_id).is_ok());
    CHECK(are_equal(target.span(), make_payload({i, 0}, kSlotBytes)));
  }
  CHECK(world.engine->oldest_transfer_start_ns() == kNeverNs);
}

TEST_CASE("a read that fails once is repeated, one that fails twice is reported") {
  EngineWorld world;
  REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(1))).is_ok());
  AlignedBytes buffer(kSlotBytes);
  const std::uint64_t before = world.disk->num_reads();
  world.disk->faults().read_error = 1;
  CHECK(world.finish(world.engine->read_block(1, 0, buffer.span())).os_errno() == EIO);
  CHECK(world.disk->num_reads() - before == 2);
  world.disk->faults().read_error = 0.5;
  int num_failed = 0;
  for (int i = 0; i < 200; ++i) {
    num_failed += world.finish(world.engine->read_block(1, 0, buffer.span())).is_ok() ? 0 : 1;
  }
  CHECK(num_failed > 20);
  CHECK(num_failed < 90);
}

TEST_CASE("a write that came short is an error") {
  EngineWorld world;
  REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(1))).is_ok());
  AlignedBytes buffer(kSlotBytes);
  world.disk->faults().short_transfer = 1;
  CHECK_FALSE(world.finish(world.engine->write_block(1, 0, buffer.span())).is_ok());
  world.disk->faults().torn_write = 1;
  CHECK_FALSE(world.finish(world.engine->write_block(1, 1, buffer.span())).is_ok());
}

TEST_CASE("D11: more segments than descriptors take turns and never more are open") {
  EngineWorld world(4);
  for (std::uint32_t segment = 1; segment <= 20; ++segment) {
    REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(segment))).is_ok());
  }
  world.hooks->num_open_max = 0;
  std::vector<AlignedBytes> buffers;
  for (int round = 0; round < 5; ++round) {
    for (std::uint32_t segment = 1; segment <= 20; ++segment) {
      buffers.emplace_back(kSlotBytes);
      world.engine->read_block(segment, static_cast<std::uint32_t>(round), buffers.back().span());
    }
  }
  const auto results = world.finish_all();
  CHECK(results.size() == 100);
  for (const auto& [job_id, result] : results) CHECK(result.status.is_ok());
  CHECK(world.hooks->num_open_max <= 4);
}

TEST_CASE("D11: jobs whose file cannot be opened fail and the others go on") {
  EngineWorld world(2);
  for (std::uint32_t segment = 1; segment <= 6; ++segment) {
    REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(segment))).is_ok());
  }
  AlignedBytes scratch(kSlotBytes);
  for (const std::uint32_t segment : {2u, 3u, 4u}) {  // The second one gives its descriptor up.
    REQUIRE(world.finish(world.engine->read_block(segment, 0, scratch.span())).is_ok());
  }
  world.hooks->on_open = [](const std::string& name, const OpenFlags&) {
    return name == format::segment_file_name(2)
               ? Status::from_errno(EMFILE, "cannot open file: name=" + name)
               : Status::ok();
  };
  std::map<disk::DiskJobId, std::uint32_t> segment_of;
  std::vector<AlignedBytes> buffers;
  for (std::uint32_t segment = 1; segment <= 6; ++segment) {
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      buffers.emplace_back(kSlotBytes);
      segment_of[world.engine->read_block(segment, slot, buffers.back().span())] = segment;
    }
  }
  const TimeNs start_ns = world.clock.now_ns();
  for (const auto& [job_id, result] : world.finish_all()) {
    CHECK(result.status.is_ok() == (segment_of.at(job_id) != 2));
  }
  CHECK(world.clock.now_ns() - start_ns < kNsPerS);
  CHECK(world.engine->num_jobs_of(2) == 0);
}

TEST_CASE("a segment that cannot be made leaves nothing behind") {
  EngineWorld world;
  world.disk->set_capacity_bytes(16 << 10);
  const Status made = world.finish(world.engine->create_segment(EngineWorld::header(1)));
  CHECK(made.code() == StatusCode::kNoSpace);
  CHECK(world.disk->files().empty());
  CHECK(world.disk->allocated_bytes() == 0);
  world.disk->set_capacity_bytes(1 << 30);
  CHECK(world.finish(world.engine->create_segment(EngineWorld::header(1))).is_ok());
}

TEST_CASE("a removed segment is gone also after power loss, and one that stays is void") {
  EngineWorld world;
  REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(1))).is_ok());
  REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(2))).is_ok());
  CHECK(world.finish(world.engine->remove_segment(1)).is_ok());
  world.hooks->on_remove = [](const std::string& name) {
    return Status::from_errno(EPERM, "cannot remove file: name=" + name);
  };
  const auto job_id = world.engine->remove_segment(2);
  const auto results = world.finish_all();
  CHECK(results.at(job_id).status.os_errno() == EPERM);
  CHECK(results.at(job_id).value == 1);
  world.disk->crash(false);
  CHECK_FALSE(world.disk->files().contains(format::segment_file_name(1)));
  const auto& left = world.disk->files().at(format::segment_file_name(2));
  CHECK_FALSE(format::decode_segment_header(std::span(left).first(4096)).is_ok());
}

TEST_CASE("the age of the oldest job shows through a stall") {
  EngineWorld world;
  REQUIRE(world.finish(world.engine->create_segment(EngineWorld::header(1))).is_ok());
  AlignedBytes buffer(kSlotBytes);
  world.disk->set_stalled(true);
  const TimeNs start_ns = world.clock.now_ns();
  world.engine->write_block(1, 0, buffer.span());
  world.clock.advance_ns(kNsPerS);
  world.engine->write_block(1, 1, buffer.span());
  CHECK(world.engine->oldest_transfer_start_ns() == start_ns);
  CHECK(world.engine->num_jobs_of(1) == 2);
  world.disk->set_stalled(false);
  world.finish_all();
  CHECK(world.engine->oldest_transfer_start_ns() == kNeverNs);
}

TEST_CASE("a task that ended says nothing of the device, a transfer does") {
  EngineWorld world;
  world.engine->create_segment(EngineWorld::header(1));
  world.finish_all();
  const TimeNs created_ns = world.engine->last_result_ns();
  CHECK(created_ns > 0);
  world.clock.advance_ns(kNsPerS);
  world.engine->run_task([] { return Status::ok(); });
  world.finish_all();
  CHECK(world.engine->last_result_ns() == created_ns);
  AlignedBuffer buffer = make_aligned_buffer(kSlotBytes);
  world.engine->write_block(1, 0, {buffer.get(), kSlotBytes});
  world.finish_all();
  CHECK(world.engine->last_result_ns() > created_ns);
}

TEST_CASE("what is not a transfer is told apart, and what is done aside is not told at all") {
  EngineWorld world;
  world.disk->set_stalled(true);
  const TimeNs start_ns = world.clock.now_ns();
  world.engine->run_aside([] { return Status::ok(); });
  CHECK(world.engine->oldest_transfer_start_ns() == kNeverNs);
  CHECK(world.engine->oldest_other_start_ns() == kNeverNs);
  world.clock.advance_ns(kNsPerS);
  world.engine->create_segment(EngineWorld::header(1));
  CHECK(world.engine->oldest_transfer_start_ns() == kNeverNs);
  CHECK(world.engine->oldest_other_start_ns() == start_ns + kNsPerS);
  world.disk->set_stalled(false);
  world.finish_all();
  CHECK(world.engine->oldest_other_start_ns() == kNeverNs);
}
