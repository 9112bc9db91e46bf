// save: a put whose bytes a mover brings from an engine's memory. Thread-safe.
#include <cstring>
#include <utility>

#include "store/put_call.h"

namespace kvtier {

using store::MoveUnderWay;
using store::wait_until;
using store::WaitToTheEnd;

namespace {

// Of a save without a host tier: one move carries about so much, while the disk works on what came
// before it.
constexpr std::uint64_t kMoveBytes = 4ull << 20;

}  // namespace

/// All bytes in one move, started in the caller's thread; then blocks become resident in order of
/// the chain.
Task<void> Store::Impl::move_to_host_blocks(PutCall& call, BlockMover& mover, Flow& flow) {
  BlockMove planned;
  if (!plan_move(call, planned)) co_return mover.finish_starting();
  const auto move = start_move(mover, std::move(planned), flow);
  mover.finish_starting();
  co_await end_move(*move, mover, call.deadline_ns, flow);
  const BlockMoveResult& result = move->result;
  if (!result.status.is_ok()) {
    const Outcome outcome = outcome_of_failed(result.status, Outcome::kDeclined, flow);
    if (outcome == Outcome::kFailed) log("warning", "a save failed: " + result.status.message());
    give_up_host_blocks(call, 0, outcome);
    co_return;
  }
  take_checksums(call, *move);
  for (const std::size_t i : move->block_indices) {
    const PutBlock& block = call.blocks[i];
    if (block.kind == PutBlock::Kind::kRenewed) {
      apply_renewal(call, i);
      continue;
    }
    const auto is_settled = [this, entry = block.entry] { return is_parent_settled(entry); };
    (void)co_await wait_until(flow, is_settled, call.deadline_ns);
    apply_host_block(call, i, flow.early_outcome());
  }
}

/// refused: when the mover has no room for more.
Outcome Store::Impl::outcome_of_failed(const Status& status, Outcome refused, const Flow& flow) {
  if (status.code() == StatusCode::kCancelled) return flow.early_outcome();
  return status.code() == StatusCode::kExhausted ? refused : Outcome::kFailed;
}

/// What is to be moved where. False: nothing.
bool Store::Impl::plan_move(PutCall& call, BlockMove& move) {
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    PutBlock& block = call.blocks[i];
    if (!block.takes_bytes()) continue;
    block.target = host_->address(index_.at(block.entry).slot(kHost));
    add_to_move(call, i, block.target, move);
  }
  return !move.block_indices.empty();
}

void Store::Impl::add_to_move(PutCall& call, std::size_t i, std::byte* target,
                              BlockMove& move) const {
  move.block_indices.push_back(i);
  move.slots.push_back(target);
  if (makes_checksums()) move.seeds.push_back({call.request.keys[i], call.space.id, 0});
  // What a slot has beyond its block goes to disk with it.
  std::memset(target + call.space.block_bytes, 0, call.space.slot_bytes - call.space.block_bytes);
}

void Store::Impl::take_checksums(PutCall& call, const MoveUnderWay& move) {
  const std::size_t num_parts = call.space.part_bytes.size();
  for (std::size_t k = 0; k < move.block_indices.size(); ++k) {
    PutBlock& block = call.blocks[move.block_indices[k]];
    block.checksums.assign(num_parts, 0);
    if (move.result.checksums.empty()) continue;
    std::memcpy(block.checksums.data(), move.result.checksums.data() + k * num_parts,
                num_parts * sizeof(std::uint64_t));
  }
}

/// Without a host tier: through staging buffers straight to disk, a batch of blocks in one move.
Task<void> Store::Impl::move_to_disk_blocks(PutCall& call, BlockMover& mover, Flow& flow) {
  BlockMove batch;
  const auto is_over = [this, &call, &flow](std::size_t i) {
    if (i == 0 || seams_.clock->now_ns() < call.deadline_ns) return is_given_up(call, i, flow);
    give_up_disk_block(call.blocks[i], flow.early_outcome());
    return true;
  };
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    PutBlock& block = call.blocks[i];
    if (!block.takes_bytes() || is_over(i)) continue;
    StagingBuffer buffer;
    if (batch.slots.size() * call.space.slot_bytes < kMoveBytes && !batch.slots.empty()) {
      buffer = try_window_buffer(call, i);
    }
    if (!buffer) {
      // Nobody waits for buffers with some that are of no use to anybody yet.
      co_await move_batch(call, mover, batch, flow);
      if (is_over(i)) continue;
      buffer = co_await take_window_buffer(call, i, flow);
    }
    if (!buffer) {
      give_up_disk_block(block, flow.early_outcome());
      continue;
    }
    block.target = buffer->data();
    add_to_move(call, i, block.target, batch);
  }
  co_await move_batch(call, mover, batch, flow);
  mover.finish_starting();
  co_await end_disk_blocks(call, flow);
}

/// Moves what the batch holds, hands it to the disk and empties the batch.
Task<void> Store::Impl::move_batch(PutCall& call, BlockMover& mover, BlockMove& batch, Flow& flow) {
  if (batch.slots.empty()) co_return;
  if (flow.is_cancelled()) {
    give_up_batch(call, std::exchange(batch, {}).block_indices, flow.early_outcome());
    co_return;
  }
  const auto move = start_move(mover, std::exchange(batch, {}), flow);
  co_await end_move(*move, mover, call.deadline_ns, flow);
  const Status& status = move->result.status;
  const Outcome outcome =
      status.is_ok() ? Outcome::kDone : outcome_of_failed(status, Outcome::kDeclined, flow);
  if (outcome == Outcome::kFailed) log("warning", "a save failed: " + status.message());
  if (outcome != Outcome::kDone) {
    give_up_batch(call, move->block_indices, outcome);
    co_return;
  }
  take_checksums(call, *move);
  for (const std::size_t i : move->block_indices) {
    submit_disk_block(call, i, {call.blocks[i].target, call.space.slot_bytes});
  }
}

/// Nobody works with its buffers any more.
void Store::Impl::give_up_batch(PutCall& call, std::span<const std::size_t> indices,
                                Outcome outcome) {
  for (const std::size_t i : indices) {
    PutBlock& block = call.blocks[i];
    staging_->release({block.target, call.space.slot_bytes});
    call.window_bytes -= call.space.slot_bytes;
    block.is_in_window = false;
    give_up_disk_block(block, outcome);
  }
}

/// Outside of the mutex. What cannot be started has ended, with the reason.
std::shared_ptr<MoveUnderWay> Store::Impl::start_move(BlockMover& mover, BlockMove move,
                                                      Flow& flow) {
  auto under_way = std::make_shared<MoveUnderWay>();
  under_way->block_indices = move.block_indices;
  flow.begin_move();
  ++num_moves_;
  // The flow lives until its moves have ended, whatever becomes of it.
  const auto end = [this, under_way, &flow](BlockMoveResult result) {
    settle_move(*under_way, std::move(result), flow);
  };
  Result<BlockMover::MoveId> started = Status(StatusCode::kInternal, "mover broke");
  flow.lock().unlock();
  try {
    started = mover.start(std::move(move), [this, end](BlockMoveResult result) {
      const std::lock_guard<std::mutex> lock(mutex_);
      end(std::move(result));
    });
  } catch (...) {
    flow.lock().lock();
    end({started.status(), {}, {}});
    throw;
  }
  flow.lock().lock();
  if (started.is_ok()) {
    under_way->move_id = started.value();
  } else {
    end({started.status(), {}, {}});
  }
  return under_way;
}

void Store::Impl::settle_move(MoveUnderWay& move, BlockMoveResult result, Flow& flow) {
  move.result = std::move(result);
  move.is_ended = true;
  flow.end_move();
  --num_moves_;
  changed();
}

/// Until the mover touches nothing of it any more; asks it to end when the call's time is over.
Task<void> Store::Impl::end_move(MoveUnderWay& move, BlockMover& mover, TimeNs deadline_ns,
                                 Flow& flow) {
  const auto is_ended = [&move] { return move.is_ended; };
  (void)co_await wait_until(flow, is_ended, deadline_ns);
  while (!move.is_ended) {
    // After a close nobody uses the slots. Until then calls that are under way may get them.
    const bool are_slots_dead = is_cut_short_;
    flow.lock().unlock();
    std::optional<BlockMoveResult> ended = mover.cancel(move.move_id, are_slots_dead);
    flow.lock().lock();
    if (ended) {
      settle_move(move, std::move(*ended), flow);
      co_return;
    }
    const auto may_have_ended = [this, &move, are_slots_dead] {
      return move.is_ended || is_cut_short_ != are_slots_dead;
    };
    co_await WaitToTheEnd(flow, may_have_ended);
  }
}

}  // namespace kvtier
