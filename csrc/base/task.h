// Task: a coroutine that another coroutine awaits, or that a driver starts. Lazily started; carries
// its result or exception. Not thread-safe: one thread at a time, its driver sees to that.
//
// Written for GCC 12: what it awaits are named objects or plain calls in a statement of their own,
// and coroutines take parameters by value or by a reference that outlives them.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvtier {

template <typename T>
class Task;

/// What the promises of all tasks have in common.
class TaskPromise {
 public:
  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      const std::coroutine_handle<> next = ended.promise().continuation_;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { failure_ = std::current_exception(); }

  void set_continuation(std::coroutine_handle<> continuation) { continuation_ = continuation; }
  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::coroutine_handle<> continuation_;  // Who awaits it; none: its driver looks at is_done().
  std::exception_ptr failure_;
};

template <typename T>
class TaskResultPromise : public TaskPromise {
 public:
  Task<T> get_return_object();
  void return_value(T value) { result_.emplace(std::move(value)); }
  T take() {
    rethrow_failure();
    return std::move(*result_);
  }

 private:
  std::optional<T> result_;
};

template <>
class TaskResultPromise<void> : public TaskPromise {
 public:
  Task<void> get_return_object();
  void return_void() const noexcept {}
  void take() const { rethrow_failure(); }
};

template <typename T>
class [[nodiscard]] Task {
 public:
  using promise_type = TaskResultPromise<T>;

  Task() = default;
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this == &other) return *this;
    if (frame_) frame_.destroy();
    frame_ = std::exchange(other.frame_, {});
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (frame_) frame_.destroy();
  }

  /// For the driver: runs until the first suspension or the end.
  void start() {
    KVTIER_CHECK(frame_);
    frame_.resume();
  }
  bool is_done() const { return frame_.done(); }
  /// The result, once. Requires is_done(). Throws what the coroutine threw.
  T take() { return frame_.promise().take(); }

  bool await_ready() const noexcept { return false; }
  /// Runs it on the spot, and suspends the awaiting coroutine only if it did not end: a loop of
  /// awaits that need no waiting then takes no stack, however the compiler treats tail calls.
  bool await_suspend(std::coroutine_handle<> awaiting) {
    frame_.resume();
    if (frame_.done()) return false;
    frame_.promise().set_continuation(awaiting);
    return true;
  }
  T await_resume() { return frame_.promise().take(); }

 private:
  std::coroutine_handle<promise_type> frame_;
};

template <typename T>
Task<T> TaskResultPromise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<TaskResultPromise<T>>::from_promise(*this));
}

inline Task<void> TaskResultPromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<TaskResultPromise<void>>::from_promise(*this));
}

}  // namespace kvtier
