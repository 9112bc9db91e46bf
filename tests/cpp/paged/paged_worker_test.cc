// Tests of workers over a shared arena: parts go to their place in the slot and back, with the
// checksums that the store would have made. Real threads, the host's device.
#include "paged/paged_worker.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "memory/arena_handover.h"

using namespace kvtier;
using namespace kvtier::paged;

namespace {

using transfer::TransferDirection;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kRows = 8;
const std::vector<std::uint64_t> kParts{5000, 0, 8192, 300};

std::byte byte_at(std::uint64_t row, std::uint64_t place) {
  return static_cast<std::byte>((row * 131 + place * 7 + place / 251) & 0xff);
}

struct WorkerWorld {
  WorkerWorld() {
    for (const std::uint64_t num_bytes : {2 * kMiB, kMiB}) {
      auto made = Arena::create(num_bytes, ArenaKind::kShared);
      REQUIRE_MESSAGE(made.is_ok(), made.status().to_string());
      arenas.push_back(std::move(made).value());
    }
    server = ArenaServer::start({arenas.begin(), arenas.end()}).value();
    auto opened = ArenaView::open(server->places());
    REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
    view = std::move(opened).value();
    options.namespace_id.bytes[0] = 9;
    options.part_bytes = kParts;
  }

  /// One tensor with a row a block, of the parts in `range`.
  std::unique_ptr<PagedWorker> make_worker(const PartRange& range, std::vector<std::byte>& tensor) {
    std::uint64_t row_bytes = 0;
    for (std::size_t k = 0; k < range.num_parts; ++k) row_bytes += kParts[range.first + k];
    tensor.resize(row_bytes * kRows);
    for (std::uint64_t row = 0; row < kRows; ++row) {
      for (std::uint64_t at = 0; at < row_bytes; ++at) {
        tensor[row * row_bytes + at] = byte_at(row + range.first * 1000, at);
      }
    }
    options.parts = range;
    options.rank = static_cast<std::uint32_t>(range.first);
    const layout::TensorPlace place{tensor.data(), tensor.size()};
    const layout::FragmentPlace fragment{0, 0, row_bytes, row_bytes};
    auto worker = PagedWorker::create(*view, options, {&place, 1}, {&fragment, 1});
    REQUIRE_MESSAGE(worker.is_ok(), worker.status().to_string());
    return std::move(worker).value();
  }

  MovePlan make_plan(TransferDirection direction) {
    MovePlan plan;
    plan.plan_id = ++last_plan_id;
    plan.arena_id = arenas[0]->id();
    plan.direction = direction;
    plan.namespace_id = options.namespace_id;
    plan.part_bytes = kParts;
    plan.block_indices = {0, 2};
    // One slot in the host arena, one in the staging buffers' behind it.
    plan.slot_offsets = {kMiB, 2 * kMiB + 65536};
    plan.keys.resize(2);
    plan.keys[1].bytes[5] = 1;
    return plan;
  }

  RankResult carry_out(PagedWorker& worker, const MovePlan& plan,
                       const std::vector<std::int64_t>& block_ids) {
    auto job = worker.submit(plan, block_ids, {}, {});
    REQUIRE_MESSAGE(job.is_ok(), job.status().to_string());
    REQUIRE(job.value()->wait(20 * kNsPerS));
    return job.value()->result();
  }

  std::string refusal_of(PagedWorker& worker, const MovePlan& plan) {
    const std::vector<std::int64_t> block_ids{0, 1, 2};
    auto job = worker.submit(plan, block_ids, {}, {});
    REQUIRE_FALSE(job.is_ok());
    CHECK(job.status().code() == StatusCode::kInvalidArgument);
    return job.status().message();
  }

  std::vector<std::shared_ptr<Arena>> arenas;
  std::unique_ptr<ArenaServer> server;
  std::unique_ptr<ArenaView> view;
  PagedWorkerOptions options;
  PlanId last_plan_id = 0;
};

}  // namespace

TEST_CASE("every rank's part lies in its place of the slot, summed up with its own index") {
  WorkerWorld world;
  const std::vector<PartRange> ranges{{0, 1}, {1, 2}, {3, 1}};
  std::vector<std::vector<std::byte>> tensors(ranges.size());
  std::vector<std::unique_ptr<PagedWorker>> workers;
  const MovePlan save = world.make_plan(TransferDirection::kSave);
  MovePlan load = world.make_plan(TransferDirection::kLoad);
  std::vector<RankResult> results;
  for (std::size_t k = 0; k < ranges.size(); ++k) {
    workers.push_back(world.make_worker(ranges[k], tensors[k]));
    results.push_back(world.carry_out(*workers[k], save, {3, 99, 5}));
    CHECK(results[k].status.is_ok());
    CHECK(results[k].parts == ranges[k]);
  }
  const std::byte* slots[] = {world.arenas[0]->base() + kMiB, world.arenas[1]->base() + 65536};
  for (std::size_t block = 0; block < 2; ++block) {
    ChecksumSeed seed{save.keys[block], save.namespace_id, 0};
    std::uint64_t offset_bytes = 0;
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
      CHECK(slots[block][offset_bytes] ==
            byte_at((block == 0 ? 3 : 5) + ranges[rank].first * 1000, 0));
      for (std::size_t k = 0; k < ranges[rank].num_parts; ++k) {
        const std::uint64_t part_bytes = kParts[seed.part_index];
        const std::uint64_t sum = checksum_part({slots[block] + offset_bytes, part_bytes}, seed);
        CHECK(results[rank].checksums[block * ranges[rank].num_parts + k] == sum);
        load.checksums.push_back(sum);
        offset_bytes += part_bytes;
        ++seed.part_index;
      }
    }
  }
  const auto before = tensors;
  for (std::size_t k = 0; k < ranges.size(); ++k) {
    const std::uint64_t row_bytes = tensors[k].size() / kRows;
    const RankResult loaded = world.carry_out(*workers[k], load, {0, 99, 1});
    CHECK(loaded.status.is_ok());
    CHECK(loaded.undefined_indices.empty());
    CHECK(std::memcmp(tensors[k].data(), before[k].data() + 3 * row_bytes, row_bytes) == 0);
    CHECK(std::memcmp(tensors[k].data() + row_bytes, before[k].data() + 5 * row_bytes, row_bytes) ==
          0);
  }
  // What is not what was saved is named, on the rank whose part it is.
  load.plan_id = ++world.last_plan_id;
  world.arenas[1]->base()[65536 + 5000 + 1] ^= std::byte{4};
  CHECK(world.carry_out(*workers[0], load, {0, 99, 1}).status.is_ok());
  const RankResult wrong = world.carry_out(*workers[1], load, {0, 99, 1});
  CHECK(wrong.status.code() == StatusCode::kCorrupt);
  CHECK(wrong.undefined_indices == std::vector<std::size_t>{2});
}

TEST_CASE("a worker refuses plans that are not for it") {
  WorkerWorld world;
  world.options.generation = 2;
  std::vector<std::byte> tensor;
  const auto worker = world.make_worker({0, 1}, tensor);
  MovePlan plan = world.make_plan(TransferDirection::kSave);
  CHECK(world.refusal_of(*worker, plan).find("before a rank was abandoned") != std::string::npos);
  plan.generation = 3;
  MovePlan other = plan;
  other.slot_offsets[1] = 3 * kMiB - 100;
  CHECK(world.refusal_of(*worker, other).find("outside the arena") != std::string::npos);
  other = plan;
  other.slot_offsets[0] = 2 * kMiB - 100;  // Begins in one arena and ends in the next.
  CHECK(world.refusal_of(*worker, other).find("outside the arena") != std::string::npos);
  other = plan;
  other.arena_id.bytes[1] ^= 1;
  CHECK(world.refusal_of(*worker, other).find("another store") != std::string::npos);
  other = plan;
  std::swap(other.part_bytes[0], other.part_bytes[2]);  // The same sum, other stretches.
  CHECK(
      world.refusal_of(*worker, other)
          .find("part_bytes=(8192, 0, 5000, 300), the worker was made with part_bytes=(5000, 0") !=
      std::string::npos);
  other = plan;
  other.block_indices[1] = 3;
  CHECK(world.refusal_of(*worker, other).find("row of each key") != std::string::npos);
  CHECK(world.carry_out(*worker, plan, {0, 1, 2}).status.is_ok());
  CHECK(world.refusal_of(*worker, plan).find("submitted before") != std::string::npos);
}

TEST_CASE("of the workers of one rank over one view only one carries a plan out") {
  WorkerWorld world;
  std::vector<std::byte> tensors[3];
  const auto worker = world.make_worker({0, 1}, tensors[0]);
  const auto twin = world.make_worker({0, 1}, tensors[1]);
  const auto other = world.make_worker({3, 1}, tensors[2]);  // Of another rank.
  const MovePlan plan = world.make_plan(TransferDirection::kSave);
  CHECK(world.carry_out(*worker, plan, {0, 1, 2}).status.is_ok());
  CHECK(world.refusal_of(*twin, plan).find("submitted before") != std::string::npos);
  CHECK(world.carry_out(*other, plan, {0, 1, 2}).status.is_ok());
  // What was refused for another reason was not begun, and a worker made later knows the rest.
  const MovePlan next = world.make_plan(TransferDirection::kSave);
  const std::vector<std::int64_t> beyond{0, 1, kRows};
  CHECK_FALSE(twin->submit(next, beyond, {}, {}).is_ok());
  CHECK(world.carry_out(*twin, next, {0, 1, 2}).status.is_ok());
  const auto late = world.make_worker({0, 1}, tensors[1]);
  CHECK(world.refusal_of(*late, next).find("submitted before") != std::string::npos);
}

TEST_CASE("plans that are no longer remembered count as submitted") {
  SubmittedPlans plans;
  for (PlanId plan_id = 1; plan_id <= SubmittedPlans::kPlansMax + 2; ++plan_id) {
    CHECK(plans.note(plan_id));
  }
  for (const PlanId plan_id : {PlanId{1}, PlanId{2}, PlanId{3}}) CHECK_FALSE(plans.note(plan_id));
  plans.take_back(3);
  CHECK(plans.note(3));
  plans.take_back(2);  // Forgotten stays forgotten.
  CHECK_FALSE(plans.note(2));
}

TEST_CASE("after its view has closed a worker does nothing more") {
  WorkerWorld world;
  std::vector<std::byte> tensor;
  const auto worker = world.make_worker({0, 1}, tensor);
  CHECK(world.view->close(10 * kNsPerS));
  const MovePlan plan = world.make_plan(TransferDirection::kSave);
  const std::vector<std::int64_t> block_ids{0, 1, 2};
  CHECK(worker->submit(plan, block_ids, {}, {}).status().code() == StatusCode::kClosed);
  CHECK(world.view->device({}).status().code() == StatusCode::kClosed);
}
