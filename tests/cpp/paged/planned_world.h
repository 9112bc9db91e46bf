// PlannedWorld: a store on a simulated disk whose saves and loads two ranks carry out, a part each.
// One thread.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "paged/planned_mover.h"
#include "paged/rank_double.h"
#include "store/store_world.h"

namespace kvtier::testing {

using paged::MovePlan;
using paged::PartRange;
using paged::PlannedMover;
using paged::PlanTable;
using paged::RankResult;
using transfer::TransferDirection;

inline constexpr std::size_t kBytes = 4096;
inline const std::vector<std::uint64_t> kParts{1500, 2596};

struct PlannedJob {
  std::shared_ptr<PlannedMover> mover;
  std::shared_ptr<Job> job;
};

struct PlannedWorld : StoreWorld {
  explicit PlannedWorld(std::uint64_t seed = 1, std::uint64_t host_bytes = 8 << 20)
      : StoreWorld(seed) {
    options.host_bytes = host_bytes;
    options.is_arena_shared = true;
    reopen();
  }
  void reopen() {
    if (store) REQUIRE(store->close(60 * kNsPerS).is_ok());
    store.reset();
    REQUIRE(open().is_ok());
    space = add_namespace(kBytes, 7, kParts);
    auto arenas = store->shared_arenas();
    REQUIRE_MESSAGE(arenas.is_ok(), arenas.status().to_string());
    plans = std::make_shared<PlanTable>();
    plans->set_arenas(arenas.value());
    memory.clear();
    for (const auto& arena : arenas.value()) memory.push_back(arena->bytes(0, arena->num_bytes()));
    ranks.clear();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back(rank, kParts, PartRange{rank, 1}, memory);
    }
  }
  ~PlannedWorld() {
    plans->close();
    store.reset();
  }

  PlannedJob save(std::uint64_t first, std::size_t num_blocks, TimeNs span_ns = 30 * kNsPerS) {
    for (RankDouble& rank : ranks) {
      rank.blocks.clear();
      for (std::size_t i = 0; i < num_blocks; ++i) rank.hold(i, payload_of(first + i, kBytes));
    }
    PlannedJob call{make_mover(TransferDirection::kSave), {}};
    const auto keys = keys_of(first, num_blocks);
    call.job = store->save_async({space, keys, call.mover, {}, true, 0, span_ns}, {}).value();
    return call;
  }
  PlannedJob load(std::uint64_t first, std::size_t num_blocks, TimeNs span_ns = 30 * kNsPerS) {
    for (RankDouble& rank : ranks) rank.blocks.clear();
    PlannedJob call{make_mover(TransferDirection::kLoad), {}};
    const auto keys = keys_of(first, num_blocks);
    call.job = store->load_async({space, keys, call.mover, true, 0, span_ns}, {}).value();
    return call;
  }
  std::vector<MovePlan> take(const PlannedJob& call) { return call.mover->take_plans(*clock, 0); }
  MovePlan take_one(const PlannedJob& call) {
    auto taken = take(call);
    REQUIRE(taken.size() == 1);
    return taken.front();
  }
  bool finish(RankResult result) {
    auto finished = plans->finish(std::move(result));
    REQUIRE_MESSAGE(finished.is_ok(), finished.status().to_string());
    return finished.value();
  }
  /// Carries out what comes, on both ranks, until the job has ended.
  void carry_out(const PlannedJob& call) {
    for (int turn = 0; turn < 1000 && !call.job->is_ended(); ++turn) {
      for (const MovePlan& plan : take(call)) {
        for (const std::uint64_t offset_bytes : plan.slot_offsets) {
          num_staged_blocks += offset_bytes >= memory[0].size() ? 1 : 0;
        }
        for (RankDouble& rank : ranks) CHECK(finish(rank.carry_out(plan)));
      }
      (void)store->wait_job(*call.job, kNsPerMs).is_ok();
    }
    REQUIRE(call.job->is_ended());
    CHECK(call.mover->is_exhausted());
    check_consistency();
  }
  void end(const PlannedJob& call) {
    REQUIRE(store->wait_job(*call.job, 60 * kNsPerS).is_ok());
    check_consistency();
  }
  void check_loaded(std::uint64_t first, std::size_t num_blocks) {
    for (std::size_t i = 0; i < num_blocks; ++i) {
      for (const RankDouble& rank : ranks) CHECK(rank.holds(i, payload_of(first + i, kBytes)));
    }
  }

  std::uint32_t space = 0;
  std::shared_ptr<PlanTable> plans;
  std::vector<RankDouble> ranks;
  std::vector<std::span<std::byte>> memory;  // The store's arenas.
  std::size_t num_staged_blocks = 0;

  std::shared_ptr<PlannedMover> make_mover(TransferDirection direction) {
    const NamespaceId id = key_of(0x1000000 + 7 * 1000003 + kBytes);
    return std::make_shared<PlannedMover>(plans, PlanTable::Call{direction, id, 2, kParts});
  }
};

}  // namespace kvtier::testing
