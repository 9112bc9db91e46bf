// The threaded executor: it pumps when woken and when time has come, and ends when stopped.
#include "base/executor.h"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

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

/// An executor whose pump counts its runs, and says which threads ran it.
struct PumpedExecutor {
  explicit PumpedExecutor(TimeNs pause_ns = kNeverNs) {
    executor->start([this, pause_ns] {
      const std::lock_guard<std::mutex> lock(mutex);
      ++num_runs;
      runners.insert(std::this_thread::get_id());
      executor->notify();
      return pause_ns == kNeverNs ? kNeverNs : clock.now_ns() + pause_ns;
    });
    std::unique_lock<std::mutex> lock(mutex);
    CHECK(executor->wait(lock, [&] { return num_runs > 0; }, clock.now_ns() + 60 * kNsPerS));
    runners.clear();
  }
  ~PumpedExecutor() { executor->stop(); }

  /// Waits until the pump has run `num` times more, without a turn of its own.
  bool sees_runs(int num, TimeNs patience_ns = 60 * kNsPerS) {
    const TimeNs deadline_ns = clock.now_ns() + patience_ns;
    int first = -1;
    while (clock.now_ns() < deadline_ns) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (first < 0) first = num_runs;
      if (num_runs - first >= num) return true;
    }
    return false;
  }

  SystemClock clock;
  std::mutex mutex;
  int num_runs = 0;
  std::set<std::thread::id> runners;
  const std::unique_ptr<Executor> executor = make_thread_executor(clock);
};

TEST_CASE("a waiter pumps itself, so that what is woken for it needs no other thread") {
  PumpedExecutor pumped;
  for (int round = 0; round < 100; ++round) {
    std::unique_lock<std::mutex> lock(pumped.mutex);
    pumped.runners.clear();
    const int num_before = pumped.num_runs;
    std::thread waker([&] {
      // Who gets the mutex knows that the waiter gave it up, so has its turn.
      pumped.mutex.lock();
      pumped.mutex.unlock();
      pumped.executor->wake();
    });
    const auto is_done = [&] { return pumped.num_runs > num_before; };
    CHECK(pumped.executor->wait(lock, is_done, pumped.clock.now_ns() + 60 * kNsPerS));
    CHECK(pumped.runners == std::set{std::this_thread::get_id()});
    lock.unlock();
    waker.join();
  }
}

TEST_CASE("the pump's thread takes over when the waiter that pumped leaves") {
  PumpedExecutor pumped;
  {
    std::unique_lock<std::mutex> lock(pumped.mutex);
    CHECK_FALSE(
        pumped.executor->wait(lock, [] { return false; }, pumped.clock.now_ns() + kNsPerMs));
  }
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> is_seen{false};
    std::thread watcher([&] { is_seen = pumped.sees_runs(1); });
    while (!is_seen) pumped.executor->wake();
    watcher.join();
  }
}

TEST_CASE("a time that the pump asked for in a waiter holds after the waiter left") {
  PumpedExecutor pumped(2 * kNsPerMs);
  for (int round = 0; round < 10; ++round) {
    {
      std::unique_lock<std::mutex> lock(pumped.mutex);
      const int num_before = pumped.num_runs;
      const auto is_done = [&] { return pumped.num_runs > num_before; };
      CHECK(pumped.executor->wait(lock, is_done, pumped.clock.now_ns() + 60 * kNsPerS));
    }
    CHECK(pumped.sees_runs(2));
  }
}

TEST_CASE("a time that the thread's pump brings holds for a waiter that came meanwhile") {
  SystemClock clock;
  const std::unique_ptr<Executor> executor = make_thread_executor(clock);
  std::mutex mutex;
  std::atomic<int> num_begun{0};
  int num_runs = 0;  // Guarded by the mutex.
  executor->start([&] {
    ++num_begun;
    const std::lock_guard<std::mutex> lock(mutex);
    ++num_runs;
    if (num_runs >= 3) executor->notify();
    return num_runs < 2 ? kNeverNs : clock.now_ns() + kNsPerMs;
  });
  while (num_begun < 1) std::this_thread::yield();
  std::unique_lock<std::mutex> lock(mutex);
  while (num_runs < 1) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  executor->wake();
  // The thread is in its second run, and waits for the mutex that is given up only with the turn.
  while (num_begun < 2) std::this_thread::yield();
  CHECK(executor->wait(lock, [&] { return num_runs >= 3; }, clock.now_ns() + 10 * kNsPerS));
  lock.unlock();
  executor->stop();
}

TEST_CASE("a condition that throws gives the turn back") {
  PumpedExecutor pumped;
  std::unique_lock<std::mutex> lock(pumped.mutex);
  int num_looks = 0;
  const auto throws_later = [&]() -> bool {
    if (++num_looks == 1) pumped.executor->wake();
    if (num_looks > 1) throw std::runtime_error("a condition failed");
    return false;
  };
  CHECK_THROWS_AS((void)pumped.executor->wait(lock, throws_later, kNeverNs), std::runtime_error);
  CHECK(lock.owns_lock());
  const int num_before = pumped.num_runs;
  pumped.executor->wake();
  const auto is_done = [&] { return pumped.num_runs > num_before; };
  CHECK(pumped.executor->wait(lock, is_done, pumped.clock.now_ns() + 60 * kNsPerS));
}

TEST_CASE("waiters of many threads all see what wakes and notifications bring") {
  PumpedExecutor pumped;
  constexpr int kNumThreads = 6;
  constexpr int kNumRounds = 300;
  std::vector<std::thread> threads;
  std::atomic<int> num_missed{0};
  int baton = 0;  // Guarded by the mutex: each passes it on in turn.
  for (int thread_index = 0; thread_index < kNumThreads; ++thread_index) {
    threads.emplace_back([&, thread_index] {
      for (int round = 0; round < kNumRounds; ++round) {
        std::unique_lock<std::mutex> lock(pumped.mutex);
        const int wanted = round * kNumThreads + thread_index;
        const auto is_mine = [&] { return baton == wanted; };
        if (!pumped.executor->wait(lock, is_mine, pumped.clock.now_ns() + 60 * kNsPerS)) {
          ++num_missed;
          return;
        }
        ++baton;
        // Notified directly, or through a run of the pump.
        round % 2 == 0 ? pumped.executor->notify() : pumped.executor->wake();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_missed == 0);
  CHECK(baton == kNumThreads * kNumRounds);
}

TEST_CASE("a stop ends pumping in waiters, which wait on until they are notified") {
  PumpedExecutor pumped(100 * kNsPerUs);
  bool is_over = false;  // Guarded by the mutex.
  std::atomic<bool> is_met{false};
  std::thread waiter([&] {
    std::unique_lock<std::mutex> lock(pumped.mutex);
    is_met = pumped.executor->wait(lock, [&] { return is_over; }, kNeverNs);
  });
  CHECK(pumped.sees_runs(3));
  pumped.executor->stop();
  int num_before = 0;
  {
    const std::lock_guard<std::mutex> lock(pumped.mutex);
    num_before = pumped.num_runs;
  }
  pumped.executor->wake();
  CHECK_FALSE(pumped.sees_runs(1, 5 * kNsPerMs));
  {
    const std::lock_guard<std::mutex> lock(pumped.mutex);
    is_over = true;
    pumped.executor->notify();
  }
  waiter.join();
  CHECK(is_met);
  CHECK(pumped.num_runs == num_before);
}

}  // namespace
}  // namespace kvtier
