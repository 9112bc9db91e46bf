// MoverDouble: an engine's memory, and a mover whose moves end when a test says so, or at some step
// of the simulation. One thread.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "job_calls.h"
#include "store/block_mover.h"

namespace kvtier::testing {

class MoverDouble : public BlockMover {
 public:
  enum class Direction { kSave, kLoad };

  /// memory: one buffer a block of the call, in order of its keys.
  MoverDouble(Direction direction, std::vector<std::vector<std::byte>>& memory,
              std::vector<std::uint64_t> part_bytes, std::shared_ptr<Executor> executor)
      : direction_(direction),
        memory_(memory),
        part_bytes_(std::move(part_bytes)),
        executor_(std::move(executor)) {}

  Result<MoveId> start(BlockMove move, OnEnd on_end) override {
    CHECK_FALSE(is_finished);
    CHECK(move.slots.size() == move.block_indices.size());
    const bool is_checked = direction_ == Direction::kLoad && !move.seeds.empty();
    CHECK(move.checksums.size() == (is_checked ? move.slots.size() * part_bytes_.size() : 0));
    for (const std::size_t index : move.block_indices) CHECK(moved.insert(index).second);
    if (!start_status.is_ok()) return start_status;
    if (breaks_at_start) {
      ++num_breaks;
      throw InternalError("broken on purpose");
    }
    under_way_.push_back({++last_id_, std::move(move), std::move(on_end), false});
    if (ends_by_itself) {
      executor_->post(StepPriority::kLoad, [this] {
        if (num_under_way() > 0) end_next();
      });
    }
    return last_id_;
  }
  std::optional<BlockMoveResult> cancel(MoveId move_id, bool /*are_slots_dead*/) override {
    ++num_cancels;
    for (Move& it : under_way_) it.is_cancelled = it.is_cancelled || it.move_id == move_id;
    return std::nullopt;
  }
  void finish_starting() override { is_finished = true; }

  std::size_t num_under_way() const { return under_way_.size(); }
  std::byte* next_slot() { return under_way_.front().move.slots.front(); }
  /// The oldest move is done, or ends as `status` says, or as it was cancelled.
  void end_next(Status status = Status::ok()) {
    Move move = std::move(under_way_.front());
    under_way_.pop_front();
    if (status.is_ok() && move.is_cancelled) status = Status(StatusCode::kCancelled, "cancelled");
    BlockMoveResult result;
    result.status = std::move(status);
    if (result.status.is_ok()) {
      carry_out(move.move, result);
    } else if (direction_ == Direction::kLoad) {
      result.undefined_indices = move.move.block_indices;
      for (const std::size_t index : move.move.block_indices) {
        std::fill(memory_[index].begin(), memory_[index].end(), std::byte{0xee});
      }
    }
    move.on_end(std::move(result));
  }

  bool ends_by_itself = true;
  Status start_status = Status::ok();
  bool breaks_at_start = false;
  std::set<std::size_t> damaged_on_the_way;
  // What was seen.
  bool is_finished = false;
  std::size_t num_cancels = 0;
  std::size_t num_breaks = 0;
  std::set<std::size_t> moved;

 private:
  struct Move {
    MoveId move_id = 0;
    BlockMove move;
    OnEnd on_end;
    bool is_cancelled = false;
  };

  void carry_out(const BlockMove& move, BlockMoveResult& result) {
    for (std::size_t k = 0; k < move.slots.size(); ++k) {
      const std::size_t index = move.block_indices[k];
      std::vector<std::byte>& block = memory_[index];
      if (direction_ == Direction::kSave) {
        std::copy(block.begin(), block.end(), move.slots[k]);
      } else {
        std::copy_n(move.slots[k], block.size(), block.begin());
        if (damaged_on_the_way.contains(index)) block[7] ^= std::byte{1};
      }
      if (move.seeds.empty()) continue;
      const std::vector<std::uint64_t> sums = sums_of(block, move.seeds[k]);
      if (direction_ == Direction::kSave) {
        result.checksums.insert(result.checksums.end(), sums.begin(), sums.end());
      } else if (!std::equal(sums.begin(), sums.end(),
                             move.checksums.begin() +
                                 static_cast<std::ptrdiff_t>(k * part_bytes_.size()))) {
        result.undefined_indices.push_back(index);
        result.status = Status(StatusCode::kCorrupt, "not what was saved");
      }
    }
  }

  std::vector<std::uint64_t> sums_of(const std::vector<std::byte>& block, ChecksumSeed seed) const {
    std::vector<std::uint64_t> sums;
    std::size_t at = 0;
    for (const std::uint64_t part_bytes : part_bytes_) {
      sums.push_back(checksum_part(std::span(block).subspan(at, part_bytes), seed));
      at += part_bytes;
      ++seed.part_index;
    }
    return sums;
  }

  const Direction direction_;
  std::vector<std::vector<std::byte>>& memory_;
  const std::vector<std::uint64_t> part_bytes_;
  const std::shared_ptr<Executor> executor_;
  std::deque<Move> under_way_;
  MoveId last_id_ = 0;
};

/// A save or load with the engine memory that belongs to it.
struct PagedCall {
  std::uint64_t first = 0;
  std::shared_ptr<std::vector<std::vector<std::byte>>> memory;
  std::shared_ptr<MoverDouble> mover;
  std::shared_ptr<Job> job;

  const std::vector<Outcome>& outcomes() const { return job->outcomes(); }
  std::set<std::size_t> undefined() const {
    const auto& indices = job->undefined_indices();
    return {indices.begin(), indices.end()};
  }
};

struct PagedOptions {
  TimeNs timeout_ns = 30 * kNsPerS;
  bool ends_by_itself = true;
  bool is_prefix = true;
  std::optional<BlockKey> parent = {};
  std::vector<std::uint64_t> part_bytes = {};
};

inline std::vector<std::uint64_t> parts_or_one(const PagedOptions& options, std::size_t bytes) {
  return options.part_bytes.empty() ? std::vector<std::uint64_t>{bytes} : options.part_bytes;
}

inline PagedCall start_save(StoreWorld& world, const BlockRun& run,
                            const PagedOptions& options = {}) {
  PagedCall call{run.first, std::make_shared<std::vector<std::vector<std::byte>>>(), {}, {}};
  for (std::size_t i = 0; i < run.num_blocks; ++i) {
    call.memory->push_back(payload_of(run.first + i, run.block_bytes));
  }
  call.mover =
      std::make_shared<MoverDouble>(MoverDouble::Direction::kSave, *call.memory,
                                    parts_or_one(options, run.block_bytes), world.executor);
  call.mover->ends_by_itself = options.ends_by_itself;
  const auto keys = keys_of(run.first, run.num_blocks);
  auto job = world.store->save_async(
      {run.space, keys, call.mover, options.parent, true, 0, options.timeout_ns}, {});
  REQUIRE_MESSAGE(job.is_ok(), job.status().to_string());
  call.job = std::move(job).value();
  return call;
}

inline PagedCall start_load(StoreWorld& world, const BlockRun& run,
                            const PagedOptions& options = {},
                            const std::set<std::size_t>& damaged = {}) {
  PagedCall call{run.first, std::make_shared<std::vector<std::vector<std::byte>>>(), {}, {}};
  call.memory->assign(run.num_blocks, canary_of(run.block_bytes));
  call.mover =
      std::make_shared<MoverDouble>(MoverDouble::Direction::kLoad, *call.memory,
                                    parts_or_one(options, run.block_bytes), world.executor);
  call.mover->ends_by_itself = options.ends_by_itself;
  call.mover->damaged_on_the_way = damaged;
  const auto keys = keys_of(run.first, run.num_blocks);
  auto job = world.store->load_async(
      {run.space, keys, call.mover, options.is_prefix, 0, options.timeout_ns}, {});
  REQUIRE_MESSAGE(job.is_ok(), job.status().to_string());
  call.job = std::move(job).value();
  return call;
}

/// Blocks that are done have their bytes, those named undefined may have any, no other was touched.
inline void check_memory(const PagedCall& load) {
  const std::set<std::size_t> undefined = load.undefined();
  for (std::size_t i = 0; i < load.memory->size(); ++i) {
    CAPTURE(i);
    const std::vector<std::byte>& block = (*load.memory)[i];
    if (load.outcomes()[i] == Outcome::kDone) {
      CHECK_FALSE(undefined.contains(i));
      const bool is_right = block == payload_of(load.first + i, block.size());
      CHECK(is_right);
    } else if (!undefined.contains(i)) {
      const bool is_untouched = block == canary_of(block.size());
      CHECK(is_untouched);
    }
  }
}

}  // namespace kvtier::testing
