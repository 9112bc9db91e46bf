// load: a get whose bytes a mover takes into an engine's memory: what lies in host at once, what
// comes from disk as it arrives. Thread-safe.
#include <algorithm>
#include <deque>
#include <utility>

#include "store/get_call.h"

namespace kvtier {

using store::GiveWay;
using store::Load;
using store::MoveUnderWay;
using store::wait_until;

namespace {

// What came from disk is moved on in pieces of about this: the device is busy while the next ones
// are read, and their buffers are free again soon.
constexpr std::uint64_t kMoveBytes = 4ull << 20;
// Of one load under way.
constexpr std::size_t kMovesMax = 16;

}  // namespace

struct Store::Impl::LoadCall {
  GetCall get;
  BlockMover& mover;
  std::vector<std::size_t>& undefined_indices;
  std::vector<std::size_t> ready;                   // Blocks in host memory, to be moved next.
  std::deque<std::shared_ptr<MoveUnderWay>> moves;  // Oldest first.
  bool has_given_way = false;
};

Task<Store::Impl::Outcomes> Store::Impl::run_load(GetRequest request, const Namespace& space,
                                                  BlockMover& mover,
                                                  std::vector<std::size_t>& undefined_indices,
                                                  Flow& flow) {
  const TimeNs deadline_ns = seams_.clock->now_ns() + request.timeout_ns;
  LoadCall call{{request, space, deadline_ns, {}}, mover, undefined_indices, {}, {}};
  std::vector<GetCall::Block>& blocks = call.get.blocks;
  plan_get(call.get);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].entry == kNoEntry) continue;
    co_await end_some_moves(call, kMovesMax, flow);
    issue_loads(call.get);
    const bool is_late = i > 0 && seams_.clock->now_ns() >= deadline_ns;
    Outcome outcome = Outcome::kDone;
    if (is_late || flow.is_cancelled()) {
      outcome = flow.early_outcome();
    } else if (blocks[i].load || !index_.at(blocks[i].entry).is_resident(kHost)) {
      outcome = co_await bring_to_memory(call, i, flow);
    } else {
      blocks[i].source = host_->address(index_.at(blocks[i].entry).slot(kHost));
    }
    if (outcome == Outcome::kDone) {
      call.ready.push_back(i);
      const bool is_enough = call.ready.size() * space.block_bytes >= kMoveBytes;
      if (blocks[i].is_from_disk && is_enough) start_load_move(call, flow);
      continue;
    }
    blocks[i].outcome = outcome;
    if (request.is_prefix) break;
  }
  if (flow.is_cancelled() || seams_.clock->now_ns() >= deadline_ns) {
    give_up_ready(call, flow.early_outcome());
  }
  start_load_move(call, flow);
  mover.finish_starting();
  while (!call.moves.empty()) co_await end_oldest_move(call, flow);
  if (request.is_prefix) cut_prefix(call);
  for (const GetCall::Block& block : blocks) {
    if (block.outcome != Outcome::kDone) continue;
    ++(block.is_from_disk ? disk_space_ : host_space_).stats.hits;
    if (!block.is_from_disk) host_space_.stats.bytes_read += space.block_bytes;
  }
  finish_get(call.get);
  Outcomes outcomes;
  outcomes.reserve(blocks.size());
  for (const GetCall::Block& block : blocks) outcomes.push_back(block.outcome);
  co_return outcomes;
}

/// Those that have ended, so that their buffers are free, and more if there are too many.
Task<void> Store::Impl::end_some_moves(LoadCall& call, std::size_t num_moves_max, Flow& flow) {
  while (!call.moves.empty() &&
         (call.moves.front()->is_ended || call.moves.size() >= num_moves_max)) {
    co_await end_oldest_move(call, flow);
  }
}

/// Nothing of them was moved, and nothing will be.
void Store::Impl::give_up_ready(LoadCall& call, Outcome outcome) {
  for (const std::size_t i : std::exchange(call.ready, {})) {
    call.get.blocks[i].outcome = outcome;
    drop_load(call.get, i);
  }
}

/// Reads block `i` from disk and checks it, unless somebody else has. kDone: it lies at `source`.
Task<Outcome> Store::Impl::bring_to_memory(LoadCall& call, std::size_t i, Flow& flow) {
  GetCall& get = call.get;
  GetCall::Block& block = get.blocks[i];
  if (!std::exchange(call.has_given_way, true)) {
    // Checking is not the submitter's.
    start_load_move(call, flow);
    co_await GiveWay(flow);
  }
  if (!block.load) {
    if (!disk_ || !disk_->is_readable()) co_return Outcome::kMiss;
    block.is_from_disk = true;
    // Buffers that this call needs may be those of its own moves.
    while (!start_load(get, i, 0) && (!call.ready.empty() || !call.moves.empty())) {
      start_load_move(call, flow);
      co_await end_oldest_move(call, flow);
      if (flow.is_cancelled()) co_return flow.early_outcome();
    }
    const bool is_in_time = co_await reserve_buffer(get, i, flow);
    if (!is_in_time) co_return flow.early_outcome();
  }
  const std::shared_ptr<Load> load = block.load;
  if (!load) {
    // Removed, or its tier turned off, while the call waited; or it came to host by another way.
    if (!index_.at(block.entry).is_resident(kHost)) co_return Outcome::kMiss;
    block.is_from_disk = false;
    block.source = host_->address(index_.at(block.entry).slot(kHost));
    co_return Outcome::kDone;
  }
  block.is_from_disk = true;
  // What is there does not wait for the disk.
  if (!is_settled(*load)) start_load_move(call, flow);
  const auto is_load_settled = [this, &load] { return is_settled(*load); };
  (void)co_await wait_until(flow, is_load_settled, get.deadline_ns);
  verify(*load, get.space, get.request.keys[i], flow);
  if (load->state != Load::State::kReady) {
    const bool is_failed = load->state == Load::State::kFailed;
    const Outcome outcome = is_failed ? load->outcome : flow.early_outcome();
    drop_load(get, i);
    co_return outcome;
  }
  block.source = load->buffer.data();
  // In a host slot the call's hold keeps it; a staging buffer is kept by its load.
  if (index_.at(block.entry).is_resident(kHost)) {
    block.source = host_->address(index_.at(block.entry).slot(kHost));
    drop_load(get, i);
  }
  co_return Outcome::kDone;
}

/// Starts moving what is ready; nothing when nothing is.
void Store::Impl::start_load_move(LoadCall& call, Flow& flow) {
  if (call.ready.empty()) return;
  const GetCall& get = call.get;
  const std::size_t num_parts = get.space.part_bytes.size();
  BlockMove move;
  move.block_indices = std::exchange(call.ready, {});
  for (const std::size_t i : move.block_indices) {
    move.slots.push_back(get.blocks[i].source);
    if (!makes_checksums()) continue;
    move.seeds.push_back({get.request.keys[i], get.space.id, 0});
    const auto checksums = index_.checksums(get.blocks[i].entry, num_parts);
    move.checksums.insert(move.checksums.end(), checksums.begin(), checksums.end());
  }
  call.moves.push_back(start_move(call.mover, std::move(move), flow));
}

Task<void> Store::Impl::end_oldest_move(LoadCall& call, Flow& flow) {
  const std::shared_ptr<MoveUnderWay> move = call.moves.front();
  co_await end_move(*move, call.mover, call.get.deadline_ns, flow);
  call.moves.pop_front();
  apply_load_move(call, *move, flow);
}

void Store::Impl::apply_load_move(LoadCall& call, const MoveUnderWay& move, Flow& flow) {
  const BlockMoveResult& result = move.result;
  Outcome outcome = Outcome::kDone;
  if (!result.status.is_ok() && result.status.code() != StatusCode::kCorrupt) {
    outcome = outcome_of_failed(result.status, Outcome::kMiss, flow);
  }
  if (outcome == Outcome::kFailed) log("warning", "a load failed: " + result.status.message());
  for (const std::size_t i : move.block_indices) {
    GetCall::Block& block = call.get.blocks[i];
    block.outcome = outcome;
    // finish_get() counts those from disk.
    if (outcome == Outcome::kFailed && !block.is_from_disk) ++host_space_.stats.load_failures;
  }
  for (const std::size_t i : result.undefined_indices) {
    call.undefined_indices.push_back(i);
    if (outcome == Outcome::kDone) settle_wrong_block(call, i, flow);
  }
  for (const std::size_t i : move.block_indices) drop_load(call.get, i);
}

/// What arrived of block `i` is not what was saved. If host memory has it wrong the block is gone;
/// else the fault lies on the way, and only this load failed.
void Store::Impl::settle_wrong_block(LoadCall& call, std::size_t i, Flow& flow) {
  GetCall::Block& block = call.get.blocks[i];
  flow.lock().unlock();
  const auto checksums =
      store::checksum_block(call.get.space, call.get.request.keys[i], block.source);
  flow.lock().lock();
  TierStats& stats = (block.is_from_disk ? disk_space_ : host_space_).stats;
  if (!block.is_from_disk) ++stats.load_failures;  // finish_get() counts those from disk.
  if (index_.has_checksums(block.entry, checksums)) {
    block.outcome = Outcome::kFailed;
    log("warning",
        "a loaded block is wrong in the engine's memory and right in host memory: block_index=" +
            std::to_string(i));
    return;
  }
  block.outcome = Outcome::kCorrupt;
  ++stats.corrupt;
  if (!index_.at(block.entry).is_detached) (void)life_.remove_family(block.entry);
}

/// After the first block that is not there all are misses; what was moved of them is nothing to
/// rely on.
void Store::Impl::cut_prefix(LoadCall& call) {
  std::vector<GetCall::Block>& blocks = call.get.blocks;
  const auto is_missing = [](const GetCall::Block& it) { return it.outcome != Outcome::kDone; };
  const auto first = std::find_if(blocks.begin(), blocks.end(), is_missing);
  if (first == blocks.end()) return;
  for (auto it = first + 1; it != blocks.end(); ++it) {
    if (it->outcome == Outcome::kDone) {
      call.undefined_indices.push_back(static_cast<std::size_t>(it - blocks.begin()));
    }
    // As finish_get() does for the others.
    const bool is_failure = it->outcome == Outcome::kCorrupt || it->outcome == Outcome::kFailed;
    if (is_failure && it->is_from_disk) ++disk_space_.stats.load_failures;
    it->outcome = Outcome::kMiss;
  }
}

}  // namespace kvtier
