// The copy pool's threads. Thread-safe. Everything that a thread touches lies in `State`, which a
// stuck thread keeps alive after the pool.
#include "base/copy_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/blocked_signals.h"
#include "base/usable_cpus.h"

namespace kvtier {
namespace {

// Every so many steps saves or prefetches have their turn before loads.
constexpr std::uint64_t kLowTurn = 8;

/// One call of split(); lies on the stack of its caller.
struct Split {
  const CopyPool::Piece* run_piece = nullptr;
  std::size_t num_pieces = 0;
  std::uint32_t num_helpers_max = 0;
  // Guarded by the pool's mutex.
  std::size_t next_piece = 0;
  std::uint32_t num_helpers = 0;
  std::exception_ptr failure;
};

}  // namespace

struct CopyPool::State {
  explicit State(std::uint32_t num_threads_wanted)
      : num_threads(num_threads_wanted == 0 ? default_num_threads() : num_threads_wanted),
        owner_pid(getpid()),
        is_exited(num_threads, false) {}

  bool start_threads(const std::shared_ptr<State>& self);
  void run_thread(std::size_t thread_index);
  bool take_step(Step& step);
  Split* find_split();
  void run_pieces(Split& split, std::unique_lock<std::mutex>& lock);

  // Constant after construction.
  const std::uint32_t num_threads;
  const pid_t owner_pid;
  // Guarded by mutex.
  std::mutex mutex;
  std::condition_variable work_changed;
  std::condition_variable split_changed;
  std::condition_variable threads_changed;
  std::array<std::deque<Step>, kNumStepPriorities> steps;
  std::vector<Split*> splits;
  std::vector<std::thread> threads;
  std::vector<bool> is_exited;
  std::size_t num_live_threads = 0;
  std::uint64_t num_taken = 0;
  bool is_stopped = false;
};

std::uint32_t CopyPool::default_num_threads() { return usable_cpus() - 1; }

CopyPool::CopyPool(std::uint32_t num_threads) : state_(std::make_shared<State>(num_threads)) {}

CopyPool::~CopyPool() { (void)stop(kNsPerS); }

bool CopyPool::post(StepPriority priority, Step step) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->is_stopped) return true;
  state_->steps[static_cast<std::size_t>(priority)].push_back(std::move(step));
  if (!state_->start_threads(state_)) return false;
  state_->work_changed.notify_one();
  return true;
}

bool CopyPool::run_one() {
  Step step;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->threads.empty() || !state_->take_step(step)) return false;
  }
  step();
  return true;
}

void CopyPool::split(std::size_t num_pieces, const Piece& run_piece) {
  Split split;
  split.run_piece = &run_piece;
  split.num_pieces = num_pieces;
  if (state_->num_threads < 2 || num_pieces < 2) {
    for (std::size_t i = 0; i < num_pieces; ++i) run_piece(i);
    return;
  }
  split.num_helpers_max = state_->num_threads - 1;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->splits.push_back(&split);
  if (!state_->is_stopped && state_->start_threads(state_)) state_->work_changed.notify_all();
  state_->run_pieces(split, lock);
  std::erase(state_->splits, &split);
  state_->split_changed.wait(lock, [&split] { return split.num_helpers == 0; });
  if (split.failure) std::rethrow_exception(split.failure);
}

std::uint32_t CopyPool::num_threads() const { return state_->num_threads; }

/// Takes pieces until none is left. `lock` is held on entry and exit, not while a piece runs.
void CopyPool::State::run_pieces(Split& split, std::unique_lock<std::mutex>& lock) {
  while (split.next_piece < split.num_pieces && !split.failure) {
    const std::size_t piece_index = split.next_piece++;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*split.run_piece)(piece_index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !split.failure) split.failure = failure;
  }
}

/// With the mutex held. One that runs may have helpers: it is further along than what waits.
Split* CopyPool::State::find_split() {
  for (Split* split : splits) {
    const bool has_pieces = split->next_piece < split->num_pieces && !split->failure;
    if (has_pieces && split->num_helpers < split->num_helpers_max) return split;
  }
  return nullptr;
}

/// With the mutex held.
bool CopyPool::State::take_step(Step& step) {
  const std::uint64_t turn = num_taken + 1;
  const std::size_t first = turn % kLowTurn == 0 ? 1 + turn / kLowTurn % 2 : 0;
  for (std::size_t i = 0; i < kNumStepPriorities; ++i) {
    auto& line = steps[(first + i) % kNumStepPriorities];
    if (line.empty()) continue;
    step = std::move(line.front());
    line.pop_front();
    ++num_taken;
    return true;
  }
  return false;
}

void CopyPool::State::run_thread(std::size_t thread_index) {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    Step step;
    if (Split* split = find_split(); split != nullptr) {
      ++split->num_helpers;
      run_pieces(*split, lock);
      if (--split->num_helpers == 0) split_changed.notify_all();
    } else if (take_step(step)) {
      lock.unlock();
      step();
      step = nullptr;  // What it captured goes without the mutex.
      lock.lock();
    } else if (is_stopped) {
      break;
    } else {
      work_changed.wait(lock);
    }
  }
  is_exited[thread_index] = true;
  --num_live_threads;
  threads_changed.notify_all();
}

/// With the mutex held. False when not even one thread runs.
bool CopyPool::State::start_threads(const std::shared_ptr<State>& self) {
  if (!threads.empty()) return true;
  const BlockedSignals blocked;
  try {
    for (std::size_t index = 0; index < num_threads; ++index) {
      std::thread thread([self, index] { self->run_thread(index); });
      pthread_setname_np(thread.native_handle(), "kvtier-copy");
      threads.push_back(std::move(thread));
      ++num_live_threads;
    }
  } catch (const std::system_error&) {
    // Those that did start do the work; without any the owner is told.
  }
  return !threads.empty();
}

bool CopyPool::stop(TimeNs grace_ns) {
  if (getpid() != state_->owner_pid) {
    // The threads are the parent's, and the mutex may be locked for ever: all of it is leaked,
    // since a joinable handle must not be destroyed.
    static_cast<void>(new std::shared_ptr<State>(state_));
    return true;
  }
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->is_stopped = true;
  for (auto& line : state_->steps) line.clear();
  state_->work_changed.notify_all();
  const bool is_over = state_->threads_changed.wait_for(
      lock, std::chrono::nanoseconds(grace_ns), [this] { return state_->num_live_threads == 0; });
  // Joining needs the mutex to be free for the last lines of a thread.
  std::vector<std::thread> threads = std::exchange(state_->threads, {});
  const std::vector<bool> is_exited = state_->is_exited;
  lock.unlock();
  for (std::size_t index = 0; index < threads.size(); ++index) {
    if (is_exited[index]) {
      threads[index].join();
    } else {
      threads[index].detach();
    }
  }
  return is_over;
}

}  // namespace kvtier
