// The copy pool: order of steps, shares of a copy, and its end.
#include "base/copy_pool.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

/// Lets tests wait for an event of the pool's threads.
class Latch {
 public:
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

TEST_CASE("loads go before saves, saves before prefetches, and none starves") {
  CopyPool pool(1);
  Latch is_blocked;
  Latch go_on;
  Latch is_over;
  std::vector<char> order;  // Of one thread.
  pool.post(StepPriority::kLoad, [&] {
    is_blocked.open();
    go_on.wait();
  });
  is_blocked.wait();
  for (int i = 0; i < 2; ++i) {
    pool.post(StepPriority::kPrefetch, [&] { order.push_back('p'); });
    pool.post(StepPriority::kSave, [&] { order.push_back('s'); });
  }
  for (int i = 0; i < 16; ++i) pool.post(StepPriority::kLoad, [&] { order.push_back('l'); });
  pool.post(StepPriority::kPrefetch, [&] { is_over.open(); });
  go_on.open();
  is_over.wait();
  // The eighth step in all and the sixteenth are somebody else's.
  REQUIRE(order.size() == 20);
  CHECK(order[6] != 'l');
  CHECK(order[14] != 'l');
  CHECK(order[6] != order[14]);
  CHECK(order[17] == 'l');
  CHECK(order[18] == 's');
  CHECK(order[19] == 'p');
}

TEST_CASE("every piece of a split runs once, by the caller and at most the other threads") {
  for (const std::uint32_t num_threads : {1u, 2u, 4u}) {
    CopyPool pool(num_threads);
    std::vector<std::atomic<int>> num_runs(1000);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    pool.split(num_runs.size(), [&](std::size_t piece_index) {
      ++num_runs[piece_index];
      const std::lock_guard<std::mutex> lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    for (const auto& runs : num_runs) CHECK(runs.load() == 1);
    CHECK(threads.size() <= num_threads);
    if (num_threads == 1) CHECK(threads == std::set<std::thread::id>{std::this_thread::get_id()});
  }
}

TEST_CASE("free threads help with a split") {
  CopyPool pool(2);
  Latch is_helped;
  std::atomic<int> num_done{0};
  const auto caller = std::this_thread::get_id();
  pool.split(2, [&](std::size_t) {
    // The caller's piece ends only when the other thread has taken the other one.
    if (std::this_thread::get_id() == caller) {
      is_helped.wait();
    } else {
      is_helped.open();
    }
    ++num_done;
  });
  CHECK(num_done.load() == 2);
}

TEST_CASE("a piece that throws ends the split with its exception") {
  for (const std::uint32_t num_threads : {1u, 3u}) {
    CopyPool pool(num_threads);
    const auto run = [&] {
      pool.split(50, [](std::size_t piece_index) {
        if (piece_index == 7) throw std::runtime_error("planted");
      });
    };
    CHECK_THROWS_AS(run(), std::runtime_error);
    std::atomic<int> num_runs{0};
    pool.split(5, [&](std::size_t) { ++num_runs; });
    CHECK(num_runs.load() == 5);
  }
}

TEST_CASE("a stop drops what waits, and steps posted later never run") {
  std::atomic<int> num_runs{0};
  CopyPool pool(1);
  Latch is_blocked;
  Latch go_on;
  pool.post(StepPriority::kLoad, [&] {
    is_blocked.open();
    go_on.wait();
  });
  is_blocked.wait();
  pool.post(StepPriority::kLoad, [&] { ++num_runs; });
  CHECK_FALSE(pool.stop(kNsPerMs));  // Its thread is busy.
  pool.post(StepPriority::kLoad, [&] { ++num_runs; });
  go_on.open();
  CHECK(num_runs.load() == 0);
}

TEST_CASE("an idle pool stops at once, also one that never ran") {
  CopyPool unused(3);
  CHECK(unused.stop(0));
  CopyPool pool(3);
  Latch is_over;
  pool.post(StepPriority::kSave, [&] { is_over.open(); });
  is_over.wait();
  CHECK(pool.stop(60 * kNsPerS));
  CHECK(pool.stop(0));
}

TEST_CASE("its threads are named, and leave signals to the application") {
  CopyPool pool(1);
  Latch is_over;
  std::array<char, 16> name{};
  bool is_blocking = false;
  bool is_fault_blocked = true;
  pool.post(StepPriority::kSave, [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    is_blocking = sigismember(&blocked, SIGTERM) == 1;
    is_fault_blocked = sigismember(&blocked, SIGSEGV) == 1;
    is_over.open();
  });
  is_over.wait();
  CHECK(std::string(name.data()) == "kvtier-copy");
  CHECK(is_blocking);
  CHECK_FALSE(is_fault_blocked);
}

TEST_CASE("the default leaves one CPU to the application") {
  const std::uint32_t num_threads = CopyPool::default_num_threads();
  CHECK(num_threads < std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace kvtier
