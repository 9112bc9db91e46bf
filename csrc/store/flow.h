// Flow: one put, get or prefetch under way, as its driver sees it: where the coroutine goes on and
// what it waits for. Guarded by the store's mutex.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "store/outcome.h"

namespace kvtier::store {

/// A flow runs with the store's mutex held; it may give it up for a copy, but never across a
/// suspension. Who drives it: the caller's thread, which blocks while the flow is suspended, or as
/// a job the copy pool, step by step; a suspended job occupies no thread.
class Flow {
 public:
  enum class Driver : std::uint8_t { kCaller, kPool };

  explicit Flow(Driver driver) : driver_(driver) {}
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  bool is_job() const { return driver_ == Driver::kPool; }
  /// The mutex, as the thread that drives the flow now holds it.
  std::unique_lock<std::mutex>& lock() { return *lock_; }
  void set_lock(std::unique_lock<std::mutex>& lock) { lock_ = &lock; }

  /// Asks the flow to end: it waits for nothing any more.
  void cancel() { is_cancelled_.store(true, std::memory_order_relaxed); }
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }
  /// Why a wait ended without its condition.
  Outcome early_outcome() const { return is_cancelled() ? Outcome::kCancelled : Outcome::kTimeout; }

  // For the driver, while the flow is suspended.
  /// Whether what it waits for has come about; remembered for the waiting coroutine.
  bool look() { return is_met_ = look_(condition_); }
  TimeNs deadline_ns() const { return deadline_ns_; }
  /// Whether nothing but its condition ends the wait: others work with what it answers for.
  bool is_patient() const { return is_patient_; }
  /// It waits for nothing but its next turn.
  bool is_giving_way() const { return look_ == nullptr; }
  void resume() { std::exchange(point_, {}).resume(); }

  // For the awaiters below.
  using Look = bool (*)(const void* condition);
  template <typename Condition>
  static bool look_at(const void* condition) {
    return bool{(*static_cast<const Condition*>(condition))()};
  }
  enum class Patience : std::uint8_t { kUntilCut, kToTheEnd };
  void suspend(std::coroutine_handle<> point, Look new_look, const void* condition,
               TimeNs deadline_ns, Patience patience = Patience::kUntilCut) {
    KVTIER_CHECK(lock_->owns_lock());
    point_ = point;
    look_ = new_look;
    condition_ = condition;
    deadline_ns_ = deadline_ns;
    is_patient_ = patience == Patience::kToTheEnd;
  }
  // For moves of it that others carry out.
  void begin_move() { ++num_moves_; }
  void end_move() { --num_moves_; }
  std::size_t num_moves() const { return num_moves_; }

  void set_met(bool is_met) { is_met_ = is_met; }
  bool is_met() const { return is_met_; }

 private:
  const Driver driver_;
  std::unique_lock<std::mutex>* lock_ = nullptr;
  std::coroutine_handle<> point_;
  Look look_ = nullptr;
  const void* condition_ = nullptr;
  TimeNs deadline_ns_ = kNeverNs;
  bool is_met_ = false;
  bool is_patient_ = false;
  std::size_t num_moves_ = 0;
  // Relaxed: only a hint while the mutex is given up; who acts on it holds the mutex.
  std::atomic<bool> is_cancelled_{false};
};

/// `co_await wait_until(flow, condition, deadline_ns)`: true once the condition holds; false when
/// the deadline, a cancellation or the end of the store came first. The condition is looked at with
/// the mutex held; it must be a named object that lives on through the wait.
template <typename Condition>
class [[nodiscard]] WaitUntil {
 public:
  WaitUntil(Flow& flow, const Condition& condition, TimeNs deadline_ns)
      : flow_(&flow), condition_(&condition), deadline_ns_(deadline_ns) {}

  bool await_ready() const {
    flow_->set_met((*condition_)());
    return flow_->is_met() || flow_->is_cancelled();
  }
  void await_suspend(std::coroutine_handle<> point) const {
    flow_->suspend(point, &Flow::look_at<Condition>, condition_, deadline_ns_);
  }
  bool await_resume() const { return flow_->is_met(); }

 private:
  Flow* flow_;
  const Condition* condition_;
  TimeNs deadline_ns_;
};

template <typename Condition>
WaitUntil<Condition> wait_until(Flow& flow, const Condition& condition, TimeNs deadline_ns) {
  return WaitUntil<Condition>(flow, condition, deadline_ns);
}

/// `co_await WaitToTheEnd(flow, condition)`: as wait_until, but nothing cuts it short. For jobs.
template <typename Condition>
class [[nodiscard]] WaitToTheEnd {
 public:
  WaitToTheEnd(Flow& flow, const Condition& condition) : flow_(&flow), condition_(&condition) {
    KVTIER_CHECK(flow.is_job());
  }

  bool await_ready() const { return (*condition_)(); }
  void await_suspend(std::coroutine_handle<> point) const {
    flow_->suspend(point, &Flow::look_at<Condition>, condition_, kNeverNs,
                   Flow::Patience::kToTheEnd);
  }
  void await_resume() const {}

 private:
  Flow* flow_;
  const Condition* condition_;
};

/// `co_await GiveWay(flow)`: a job goes to the end of the pool's line, so that others get on; a
/// flow that its caller drives goes straight on.
class [[nodiscard]] GiveWay {
 public:
  explicit GiveWay(Flow& flow) : flow_(&flow) {}

  bool await_ready() const { return !flow_->is_job(); }
  void await_suspend(std::coroutine_handle<> point) const {
    flow_->suspend(point, nullptr, nullptr, kNeverNs);
  }
  void await_resume() const {}

 private:
  Flow* flow_;
};

}  // namespace kvtier::store
