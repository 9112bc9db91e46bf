// The threaded executor: it pumps when woken and when time has come, and ends when stopped.
#include "base/executor.h"

#include <doctest/doctest.h>

#include <atomic>

namespace kvtier {
namespace {

TEST_CASE("a woken pump runs and its effect ends a wait") {
  SystemClock clock;
  const std::unique_ptr<Executor> executor = make_thread_executor(clock);
  std::mutex mutex;
  int num_runs = 0;
  executor->start([&] {
    std::lock_guard<std::mutex> lock(mutex);
    ++num_runs;
    executor->notify();
    return kNeverNs;
  });
  std::unique_lock<std::mutex> lock(mutex);
  CHECK(executor->wait(lock, [&] { return num_runs >= 1; }, clock.now_ns() + 60 * kNsPerS));
  const int num_before = num_runs;
  executor->wake();
  CHECK(executor->wait(lock, [&] { return num_runs > num_before; }, kNeverNs));
  lock.unlock();
  executor->stop();
  executor->stop();
}

TEST_CASE("a pump runs again at the time it asked for, without a wake") {
  SystemClock clock;
  const std::unique_ptr<Executor> executor = make_thread_executor(clock);
  std::mutex mutex;
  int num_runs = 0;
  executor->start([&] {
    std::lock_guard<std::mutex> lock(mutex);
    ++num_runs;
    executor->notify();
    return clock.now_ns() + kNsPerMs;
  });
  std::unique_lock<std::mutex> lock(mutex);
  CHECK(executor->wait(lock, [&] { return num_runs >= 5; }, clock.now_ns() + 60 * kNsPerS));
  lock.unlock();
  executor->stop();
  CHECK(num_runs >= 5);
}

TEST_CASE("a wait ends at its deadline") {
  SystemClock clock;
  const std::unique_ptr<Executor> executor = make_thread_executor(clock);
  std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  const TimeNs deadline_ns = clock.now_ns() + 5 * kNsPerMs;
  CHECK_FALSE(executor->wait(lock, [] { return false; }, deadline_ns));
  CHECK(clock.now_ns() >= deadline_ns);
  CHECK_FALSE(executor->wait(lock, [] { return false; }, 0));
  CHECK(executor->wait(lock, [] { return true; }, 0));
  CHECK(lock.owns_lock());
}

TEST_CASE("no pump runs after the stop") {
  SystemClock clock;
  const std::unique_ptr<Executor> executor = make_thread_executor(clock);
  std::atomic<int> num_runs{0};
  executor->start([&] {
    ++num_runs;
    return clock.now_ns();
  });
  executor->stop();
  const int num_before = num_runs;
  executor->wake();
  CHECK(num_runs == num_before);
}

}  // namespace
}  // namespace kvtier
