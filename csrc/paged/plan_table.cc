// Plans and their answers. Thread-safe; ends of moves are told with no mutex held.
#include "paged/plan_table.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/wait_piece.h"

namespace kvtier::paged {
namespace {

using transfer::TransferDirection;

Status misfit(const RankResult& result, const std::string& reason) {
  return Status(StatusCode::kInvalidArgument,
                "the answer does not fit its plan: plan_id=" + std::to_string(result.plan_id) +
                    " rank=" + std::to_string(result.rank) + ": " + reason);
}

Status lost(std::uint32_t rank) {
  return Status(StatusCode::kIoError, "its process has ended: rank=" + std::to_string(rank));
}

/// What a move ends with that touched no row.
BlockMoveResult cancelled() {
  BlockMoveResult result;
  result.status = Status(StatusCode::kCancelled, "cancelled");
  return result;
}

/// What an answer says of one part.
struct PartSums {
  const RankResult* answer = nullptr;
  std::size_t column = 0;
};

/// For each part one of the ranks that have it; no answer where none has.
std::vector<PartSums> owners_of(const std::map<std::uint32_t, RankResult>& answers,
                                std::size_t num_parts) {
  std::vector<PartSums> owners(num_parts);
  for (const auto& [rank, answer] : answers) {
    for (std::size_t column = 0; column < answer.parts.num_parts; ++column) {
      PartSums& owner = owners[answer.parts.first + column];
      if (owner.answer == nullptr) owner = {&answer, column};
    }
  }
  return owners;
}

std::uint64_t sum_at(const PartSums& sums, std::size_t block) {
  return sums.answer->checksums[block * sums.answer->parts.num_parts + sums.column];
}

/// uint64[num_blocks, num_parts] of the ranks together. kCorrupt: two that have a part moved
/// different bytes into the one slot.
Result<std::vector<std::uint64_t>> join_sums(const std::map<std::uint32_t, RankResult>& answers,
                                             const std::vector<PartSums>& owners,
                                             std::size_t num_blocks) {
  std::vector<std::uint64_t> sums;
  sums.reserve(num_blocks * owners.size());
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (const PartSums& owner : owners) sums.push_back(sum_at(owner, block));
    for (const auto& [rank, answer] : answers) {
      for (std::size_t column = 0; column < answer.parts.num_parts; ++column) {
        const std::size_t part_index = answer.parts.first + column;
        if (sum_at({&answer, column}, block) == sum_at(owners[part_index], block)) continue;
        return Status(StatusCode::kCorrupt,
                      "two ranks moved different bytes of one part: part_index=" +
                          std::to_string(part_index) + " rank=" + std::to_string(rank) +
                          "; let one of them save it");
      }
    }
  }
  return sums;
}

}  // namespace

PlanTable::PlanTable() : owner_process_id_(::getpid()) {}

void PlanTable::set_arenas(const std::vector<std::shared_ptr<const Arena>>& arenas) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.clear();
  for (const auto& arena : arenas) memory_.push_back(arena->bytes(0, arena->num_bytes()));
  if (!arenas.empty()) arena_id_ = arenas.front()->id();
}

PlanTable::CallId PlanTable::open_call(const Call& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.emplace(++last_call_id_, OpenCall{call});
  return last_call_id_;
}

void PlanTable::close_call(CallId call_id) {
  // In a forked child a thread of the parent may hold the mutex for ever.
  if (::getpid() != owner_process_id_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.erase(call_id);
}

Result<BlockMover::MoveId> PlanTable::start(CallId call_id, BlockMove move,
                                            BlockMover::OnEnd on_end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const OpenCall& open = calls_.at(call_id);
  if (is_closed_) return Status(StatusCode::kClosed, "the store closes");
  if (open.has_lost_rank) return Status(StatusCode::kIoError, "a rank of the call has ended");
  Pending pending;
  pending.call_id = call_id;
  pending.on_end = std::move(on_end);
  MovePlan& plan = pending.plan;
  plan.arena_id = arena_id_;
  plan.generation = generation_;
  plan.direction = open.call.direction;
  plan.num_ranks = open.call.num_ranks;
  plan.namespace_id = open.call.namespace_id;
  plan.part_bytes = open.call.part_bytes;
  plan.block_indices = std::move(move.block_indices);
  plan.checksums = std::move(move.checksums);
  for (const std::byte* slot : move.slots) {
    const auto offset_bytes = offset_of(slot);
    KVTIER_CHECK(offset_bytes.has_value());
    plan.slot_offsets.push_back(*offset_bytes);
  }
  for (const ChecksumSeed& seed : move.seeds) plan.keys.push_back(seed.key);
  plan.plan_id = ++last_plan_id_;
  plans_.emplace(plan.plan_id, std::move(pending));
  changed_.notify_all();
  return last_plan_id_;
}

std::optional<BlockMoveResult> PlanTable::cancel(PlanId plan_id, bool are_slots_dead) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = plans_.find(plan_id);
  if (found == plans_.end()) return std::nullopt;  // Its end is on the way.
  Pending& pending = found->second;
  pending.is_cancelled = true;
  if (pending.is_taken && !are_slots_dead) return std::nullopt;
  BlockMoveResult result = cancelled();
  const bool is_load = pending.plan.direction == TransferDirection::kLoad;
  if (pending.is_taken && is_load) result.undefined_indices = pending.plan.block_indices;
  plans_.erase(found);
  return result;
}

void PlanTable::finish_starting(CallId call_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(call_id);
  if (found != calls_.end()) found->second.is_finished = true;
  changed_.notify_all();
}

std::vector<MovePlan> PlanTable::take(CallId call_id, Clock& clock, TimeNs deadline_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!has_plan_to_take(call_id) && !is_closed_) {
    const auto open = calls_.find(call_id);
    const TimeNs now_ns = clock.now_ns();
    if (open == calls_.end() || open->second.is_finished || now_ns >= deadline_ns) break;
    changed_.wait_for(lock, piece_until(now_ns, deadline_ns));
  }
  std::vector<MovePlan> taken;
  for (auto& [plan_id, pending] : plans_) {
    if (pending.call_id == call_id && !pending.is_taken) taken.push_back(pending.plan);
  }
  // Not before all of them are in the list.
  for (const MovePlan& plan : taken) plans_.at(plan.plan_id).is_taken = true;
  return taken;
}

void PlanTable::put_back(std::span<const PlanId> plan_ids) {
  std::vector<Plans::node_type> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const PlanId plan_id : plan_ids) {
      const auto found = plans_.find(plan_id);
      if (found == plans_.end() || !std::exchange(found->second.is_taken, false)) continue;
      // An answer that is there is that of a rank that was abandoned.
      const bool is_over = found->second.is_cancelled || !found->second.answers.empty();
      if (is_over) ended.push_back(plans_.extract(found));
    }
    changed_.notify_all();
  }
  for (auto& it : ended) {
    const Pending& pending = it.mapped();
    pending.on_end(pending.answers.empty() ? cancelled() : join_answers(pending));
  }
}

bool PlanTable::is_exhausted(CallId call_id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto open = calls_.find(call_id);
  const bool is_finished = open == calls_.end() || open->second.is_finished || is_closed_;
  return is_finished && !has_plan_to_take(call_id);
}

Result<bool> PlanTable::finish(RankResult result) {
  Plans::node_type ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(result.plan_id);
    if (found == plans_.end() || !found->second.is_taken) return false;
    if (result.arena_id != arena_id_) return false;
    Pending& pending = found->second;
    Status fits = check_answer(pending, result);
    if (!fits.is_ok()) return fits;
    const std::uint32_t rank = result.rank;
    if (!pending.answers.emplace(rank, std::move(result)).second) return false;
    if (pending.answers.size() < pending.plan.num_ranks) return true;
    ended = plans_.extract(found);
  }
  ended.mapped().on_end(join_answers(ended.mapped()));
  return true;
}

std::size_t PlanTable::abandon_rank(std::uint32_t rank) {
  std::vector<Plans::node_type> ended;
  std::size_t num_unanswered = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++generation_;
    for (auto& [call_id, open] : calls_) {
      if (rank < open.call.num_ranks) open.has_lost_rank = true;
    }
    for (auto it = plans_.begin(); it != plans_.end();) {
      const auto next = std::next(it);
      Pending& pending = it->second;
      if (rank < pending.plan.num_ranks && !pending.answers.contains(rank)) {
        ++num_unanswered;
        RankResult answer;
        answer.plan_id = it->first;
        answer.rank = rank;
        answer.status = lost(rank);
        pending.answers.emplace(rank, std::move(answer));
        // A plan that nobody took is at no other rank either.
        const bool has_ended = pending.answers.size() == pending.plan.num_ranks;
        if (has_ended || !pending.is_taken) ended.push_back(plans_.extract(it));
      }
      it = next;
    }
  }
  for (auto& it : ended) it.mapped().on_end(join_answers(it.mapped()));
  return num_unanswered;
}

std::uint64_t PlanTable::generation() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return generation_;
}

std::size_t PlanTable::num_plans() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plans_.size();
}

void PlanTable::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

void PlanTable::forget_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  plans_.clear();
}

std::optional<std::uint64_t> PlanTable::offset_of(const std::byte* slot) const {
  std::uint64_t begin_bytes = 0;
  for (const std::span<std::byte> range : memory_) {
    if (slot >= range.data() && slot < range.data() + range.size()) {
      return begin_bytes + static_cast<std::uint64_t>(slot - range.data());
    }
    begin_bytes += range.size();
  }
  return std::nullopt;
}

bool PlanTable::has_plan_to_take(CallId call_id) const {
  return std::any_of(plans_.begin(), plans_.end(), [call_id](const auto& it) {
    return it.second.call_id == call_id && !it.second.is_taken;
  });
}

Status PlanTable::check_answer(const Pending& pending, const RankResult& result) {
  const MovePlan& plan = pending.plan;
  if (result.rank >= plan.num_ranks) {
    return misfit(result, "it is for num_ranks=" + std::to_string(plan.num_ranks));
  }
  const PartRange& parts = result.parts;
  if (parts.first > pending.plan.part_bytes.size() ||
      parts.num_parts > pending.plan.part_bytes.size() - parts.first) {
    return misfit(result, "parts " + std::to_string(parts.first) + " to " +
                              std::to_string(parts.first + parts.num_parts) +
                              " of num_parts=" + std::to_string(pending.plan.part_bytes.size()));
  }
  const bool is_summed =
      plan.direction == TransferDirection::kSave && !plan.keys.empty() && result.status.is_ok();
  const std::size_t num_sums = is_summed ? plan.block_indices.size() * parts.num_parts : 0;
  if (result.checksums.size() != num_sums) {
    return misfit(result, "num_checksums=" + std::to_string(result.checksums.size()) + ", not " +
                              std::to_string(num_sums));
  }
  const bool is_checked = plan.direction == TransferDirection::kLoad && !plan.keys.empty();
  if (result.status.code() == StatusCode::kCorrupt && !is_checked) {
    return misfit(result, "corrupt, but nothing of it was checked");
  }
  if (result.undefined_indices.size() > plan.block_indices.size()) {
    return misfit(result, "num_undefined=" + std::to_string(result.undefined_indices.size()) +
                              " of num_blocks=" + std::to_string(plan.block_indices.size()));
  }
  const auto& known = plan.block_indices;
  for (const std::size_t index : result.undefined_indices) {
    if (std::find(known.begin(), known.end(), index) != known.end()) continue;
    return misfit(result, "block " + std::to_string(index) + " is none of its blocks");
  }
  return Status::ok();
}

BlockMoveResult PlanTable::join_answers(const Pending& pending) {
  const MovePlan& plan = pending.plan;
  const bool is_load = plan.direction == TransferDirection::kLoad;
  BlockMoveResult joined;
  std::set<std::size_t> undefined;
  for (const auto& [rank, answer] : pending.answers) {
    undefined.insert(answer.undefined_indices.begin(), answer.undefined_indices.end());
    if (answer.status.code() == StatusCode::kCorrupt && answer.undefined_indices.empty()) {
      // Which of them it is was not said: all.
      undefined.insert(plan.block_indices.begin(), plan.block_indices.end());
    }
    const bool is_worse = joined.status.is_ok() || joined.status.code() == StatusCode::kCorrupt;
    if (!answer.status.is_ok() && is_worse) joined.status = answer.status;
  }
  const std::vector<PartSums> owners = owners_of(pending.answers, pending.plan.part_bytes.size());
  if (joined.status.is_ok()) {
    for (std::size_t part_index = 0; part_index < owners.size(); ++part_index) {
      if (owners[part_index].answer != nullptr) continue;
      joined.status = Status(StatusCode::kInvalidArgument,
                             "no rank has part_index=" + std::to_string(part_index) +
                                 " of num_ranks=" + std::to_string(plan.num_ranks));
    }
  }
  if (joined.status.is_ok() && !is_load && !plan.keys.empty()) {
    auto sums = join_sums(pending.answers, owners, plan.block_indices.size());
    joined.status = sums.status();
    if (sums.is_ok()) joined.checksums = std::move(sums).value();
  }
  if (!is_load) return joined;
  const bool is_known = joined.status.is_ok() || joined.status.code() == StatusCode::kCorrupt;
  // One rank failed; what the others were given of these blocks is of no use without it.
  if (!is_known && pending.is_taken) {
    joined.undefined_indices = plan.block_indices;
  } else {
    joined.undefined_indices.assign(undefined.begin(), undefined.end());
  }
  return joined;
}

}  // namespace kvtier::paged
