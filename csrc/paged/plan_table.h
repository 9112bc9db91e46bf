// PlanTable: the moves of a store that other processes carry out, from their plan to the answer of
// the last rank. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memory/arena.h"
#include "paged/move_plan.h"
#include "store/block_mover.h"

namespace kvtier::paged {

/// Moves nothing and has no thread: who takes plans brings them to the ranks and their answers
/// back. A slot belongs to its move until every rank has answered or was abandoned, however long
/// that takes.
class PlanTable {
 public:
  using CallId = std::uint64_t;

  /// One save or load, of which each move is a plan.
  struct Call {
    transfer::TransferDirection direction = transfer::TransferDirection::kSave;
    NamespaceId namespace_id;
    std::uint32_t num_ranks = 1;
    std::vector<std::uint64_t> part_bytes;
  };

  PlanTable();
  PlanTable(const PlanTable&) = delete;
  PlanTable& operator=(const PlanTable&) = delete;

  /// The store's arenas, before the first move: slots are named by their offset in them, taken to
  /// lie one behind the other.
  void set_arenas(const std::vector<std::shared_ptr<const Arena>>& arenas);

  CallId open_call(const Call& call);
  void close_call(CallId call_id);

  // For a mover; see BlockMover.
  Result<BlockMover::MoveId> start(CallId call_id, BlockMove move, BlockMover::OnEnd on_end);
  std::optional<BlockMoveResult> cancel(PlanId plan_id, bool are_slots_dead);
  void finish_starting(CallId call_id);

  /// Plans of the call that nobody took yet, each once. Blocks until `deadline_ns` for the first,
  /// not when there will be no more.
  std::vector<MovePlan> take(CallId call_id, Clock& clock, TimeNs deadline_ns);
  /// Plans that were taken and that no rank will see: they can be taken anew, or end now if they
  /// were to end meanwhile.
  void put_back(std::span<const PlanId> plan_ids);
  /// Whether take() has given all that will ever come.
  bool is_exhausted(CallId call_id) const;

  /// Takes in what a rank answers. False: the plan has ended, is not of this table, or has this
  /// rank's answer; nothing happens. With the last rank's answer the move ends, in this thread.
  /// kInvalidArgument: the answer does not fit the plan, which stays as it was.
  Result<bool> finish(RankResult result);
  /// The rank's process is known to be dead: it answers none of the plans that were made for it by
  /// now, and they fail, also those that nobody took; so do later moves of the same calls. Returns
  /// how many plans it had not answered.
  std::size_t abandon_rank(std::uint32_t rank);
  /// How often a rank was abandoned.
  std::uint64_t generation() const;
  /// Of plans without all their answers.
  std::size_t num_plans() const;

  /// The store closes: there are no more moves, and those that are asked to end do so at once,
  /// since nothing uses their slots after them.
  void close();
  /// The store has closed: what is left ends without a word.
  void forget_all();

 private:
  struct OpenCall {
    Call call;
    bool has_lost_rank = false;
    bool is_finished = false;  // finish_starting() was called.
  };
  struct Pending {
    MovePlan plan;
    CallId call_id = 0;
    BlockMover::OnEnd on_end;
    bool is_taken = false;
    bool is_cancelled = false;  // The store wants its end, when it was taken.
    std::map<std::uint32_t, RankResult> answers;
  };
  using Plans = std::map<PlanId, Pending>;

  // With mutex_ held.
  std::optional<std::uint64_t> offset_of(const std::byte* slot) const;
  bool has_plan_to_take(CallId call_id) const;
  static Status check_answer(const Pending& pending, const RankResult& result);
  static BlockMoveResult join_answers(const Pending& pending);

  const int owner_process_id_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::span<std::byte>> memory_;
  ArenaId arena_id_;
  std::map<CallId, OpenCall> calls_;
  Plans plans_;
  CallId last_call_id_ = 0;
  PlanId last_plan_id_ = 0;
  std::uint64_t generation_ = 0;
  bool is_closed_ = false;
};

}  // namespace kvtier::paged
