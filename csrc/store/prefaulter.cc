// One piece a step, so that loads get their turn in between. Thread-safe.
#include "store/prefaulter.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "memory/populate.h"

namespace kvtier::store {
namespace {

// A huge page: some hundred microseconds; tens of milliseconds where the memory of a virtual
// machine has to be found first, which is when it helps most. A step stands before the copies of
// others.
constexpr std::uint64_t kStepBytes = 2ull << 20;
// A system that takes longer again and again is short of memory: it takes some away from others.
constexpr std::chrono::milliseconds kStepTimeMax{250};
constexpr std::uint32_t kSlowStepsMax = 3;

}  // namespace

struct Prefaulter::State {
  /// With the mutex held: whether the caller is to post the next step.
  bool claims_step() {
    if (is_posted || ready_bytes >= wanted_bytes) return false;
    return is_posted = true;
  }

  // Constant after construction.
  std::weak_ptr<Executor> executor;  // A step that outlives it posts no other.
  std::shared_ptr<Arena> arena;
  std::uint64_t ahead_bytes = 0;
  // Guarded by mutex.
  std::mutex mutex;
  std::uint64_t wanted_bytes = 0;
  std::uint64_t ready_bytes = 0;
  bool is_posted = false;
  std::uint32_t num_slow = 0;  // One after the other.
};

Prefaulter::Prefaulter(const std::shared_ptr<Executor>& executor, std::shared_ptr<Arena> arena,
                       std::uint64_t ahead_bytes)
    : state_(std::make_shared<State>()) {
  state_->executor = executor;
  state_->arena = std::move(arena);
  state_->ahead_bytes = ahead_bytes;
  if (executor->num_copy_threads() == 0) state_->ready_bytes = state_->arena->num_bytes();
  note_used(0);
}

void Prefaulter::note_used(std::uint64_t end_bytes) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const std::uint64_t wanted_bytes =
        std::min(state_->arena->num_bytes(), end_bytes + state_->ahead_bytes);
    state_->wanted_bytes = std::max(state_->wanted_bytes, wanted_bytes);
    if (!state_->claims_step()) return;
  }
  post_step(state_);
}

std::uint64_t Prefaulter::ready_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->ready_bytes;
}

void Prefaulter::post_step(const std::shared_ptr<State>& state) {
  const std::shared_ptr<Executor> executor = state->executor.lock();
  if (executor) executor->post(StepPriority::kPrefetch, [state] { run_step(state); });
}

void Prefaulter::run_step(const std::shared_ptr<State>& state) {
  std::uint64_t begin_bytes = 0;
  std::uint64_t length_bytes = 0;
  {
    const std::lock_guard<std::mutex> lock(state->mutex);
    begin_bytes = state->ready_bytes;
    length_bytes = std::min(kStepBytes, state->wanted_bytes - begin_bytes);
  }
  const auto started = std::chrono::steady_clock::now();
  const bool is_ready = populate(state->arena->bytes(begin_bytes, length_bytes), 1);
  const bool is_slow = std::chrono::steady_clock::now() - started > kStepTimeMax;
  {
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->is_posted = false;
    // A system that cannot, or has little memory to spare, is not asked again: first touches do.
    state->num_slow = is_slow ? state->num_slow + 1 : 0;
    const bool goes_on = is_ready && state->num_slow < kSlowStepsMax;
    state->ready_bytes = goes_on ? begin_bytes + length_bytes : state->arena->num_bytes();
    if (!state->claims_step()) return;
  }
  post_step(state);
}

}  // namespace kvtier::store
