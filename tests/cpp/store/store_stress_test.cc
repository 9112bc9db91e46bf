// Sixteen threads do everything at once on a small store with real threads and files; meant for the
// thread sanitizer. Bytes are checked, and the bookkeeping at the end.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "job_calls.h"
#include "real_store.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

struct Shape {
  std::uint32_t space;
  std::size_t block_bytes;
};

class Worker {
 public:
  Worker(RealStore& real, const std::vector<Shape>& shapes, std::uint64_t seed)
      : real_(real), shapes_(shapes), random_(seed) {}

  void run_until(std::chrono::steady_clock::time_point end) {
    while (std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 10; ++i) one_call();
    }
    for (const std::uint64_t lease_id : lease_ids_) (void)real_.store->release(lease_id);
    for (JobCall& call : jobs_) {
      (void)real_.store->wait_job(*call.job, kNeverNs);
      check_job(call);
    }
  }
  std::uint64_t num_done() const { return num_done_; }

 private:
  void one_call() {
    const Shape& shape = shapes_[random_.below(shapes_.size())];
    const std::uint64_t first = random_.below(12) * 100;
    const std::size_t num_blocks = 1 + random_.below(10);
    const std::uint64_t choice = random_.below(1000);
    Store& store = *real_.store;
    const BlockRun run{shape.space, first, num_blocks, shape.block_bytes};
    if (choice < 200) {
      num_done_ += count_done(real_.put(shape.space, first, num_blocks, shape.block_bytes));
    } else if (choice < 350) {
      keep_job(start_put(store, run, 30 * kNsPerS));
    } else if (choice < 550) {
      const bool is_prefix = random_.below(2) == 0;
      num_done_ +=
          count_done(real_.get(shape.space, first, num_blocks, shape.block_bytes, is_prefix));
    } else if (choice < 700) {
      keep_job(start_get(store, run, 30 * kNsPerS, random_.below(2) == 0));
    } else if (choice < 730) {
      (void)store.prefetch(shape.space, keys_of(first, num_blocks)).is_ok();
    } else if (choice < 750) {
      (void)store.poll_jobs().is_ok();
      (void)store.job_event_fd().is_ok();
    } else if (choice < 850) {
      (void)store.lookup(shape.space, keys_of(first, num_blocks), true).is_ok();
    } else if (choice < 900) {
      lease(shape, first, num_blocks);
    } else if (choice < 940) {
      (void)store.erase(shape.space, keys_of(first + random_.below(5), 1)).is_ok();
    } else if (choice < 960) {
      (void)store.flush(kNsPerS).is_ok();
    } else if (choice < 965) {
      (void)store.clear(random_.below(2) == 0, random_.below(2) == 0).is_ok();
    } else {
      (void)store.stats();
    }
  }

  void lease(const Shape& shape, std::uint64_t first, std::size_t num_blocks) {
    auto leased = real_.store->lease(shape.space, keys_of(first, num_blocks), true,
                                     static_cast<TimeNs>(random_.below(50)) * kNsPerMs);
    if (leased.is_ok() && leased.value().lease_id != 0) {
      lease_ids_.push_back(leased.value().lease_id);
    }
    if (lease_ids_.size() < 4) return;
    (void)real_.store->release(lease_ids_.front());
    (void)real_.store->lease_expires_in_ns(lease_ids_.back());
    lease_ids_.erase(lease_ids_.begin());
  }

  /// Keeps up to eight jobs going; the buffers of an ended one are written to at once.
  void keep_job(JobCall started) {
    if (!started.job) return;  // Closed.
    jobs_.push_back(std::move(started));
    if (jobs_.size() < 8) return;
    JobCall& oldest = jobs_.front();
    if (random_.below(3) == 0) (void)real_.store->cancel_job(*oldest.job).is_ok();
    while (!oldest.job->is_ended()) {
      (void)real_.store->wait_job(*oldest.job, kNsPerMs * static_cast<TimeNs>(random_.below(20)));
    }
    check_job(oldest);
    jobs_.erase(jobs_.begin());
  }

  void check_job(JobCall& call) {
    if (!call.job->is_ended()) {
      ++real_.num_wrong;
      return;
    }
    num_done_ += count_done(call.outcomes());
    const bool is_get = call.job->kind() == Job::Kind::kGet;
    if (is_get && !has_right_bytes(call)) ++real_.num_wrong;
    for (auto& buffer : call.buffers) std::fill(buffer.begin(), buffer.end(), std::byte{0xee});
  }

  RealStore& real_;
  const std::vector<Shape>& shapes_;
  std::vector<JobCall> jobs_;
  Random random_;
  std::vector<std::uint64_t> lease_ids_;
  std::uint64_t num_done_ = 0;
};

void stress(RealStore& real, std::uint64_t seed, std::chrono::milliseconds duration) {
  REQUIRE(real.open().is_ok());
  std::vector<Shape> shapes;
  for (const std::size_t block_bytes : {500, 5000, 70'000}) {
    shapes.push_back({real.add_namespace(block_bytes), block_bytes});
  }
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint64_t i = 0; i < 16; ++i) {
    workers.push_back(std::make_unique<Worker>(real, shapes, seed * 100 + i));
  }
  const auto end = std::chrono::steady_clock::now() + duration;
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&worker, end] { worker->run_until(end); });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t num_done = 0;
  for (const auto& worker : workers) num_done += worker->num_done();
  CHECK(num_done > 100);
  CHECK(real.num_wrong.load() == 0);
  const Status consistent = real.store->check_consistency();
  CHECK_MESSAGE(consistent.is_ok(), consistent.to_string());
  CHECK(real.store->stats().live_leases == 0);
  CHECK(real.store->stats().jobs.suspended == 0);
  CHECK(real.store->flush(10 * kNsPerS).is_ok());
  CHECK(real.store->stats().staging_bytes_used == 0);
  CHECK(real.store->stats().disk.backlog_bytes == 0);
  CHECK(real.store->close(10 * kNsPerS).is_ok());
}

std::chrono::milliseconds duration_of_stress() {
  const char* text = std::getenv("KVTIER_STRESS_MS");
  return std::chrono::milliseconds(text == nullptr ? 1500 : std::strtoul(text, nullptr, 10));
}

}  // namespace

TEST_CASE("sixteen threads that do everything at once get right bytes from both tiers") {
  RealStore real;
  real.options.disk_bytes = 6 << 20;
  stress(real, 1, duration_of_stress());
}

TEST_CASE("sixteen threads that do everything at once get right bytes from disk alone") {
  RealStore real;
  real.options.host_bytes = 0;
  real.options.disk_bytes = 6 << 20;
  stress(real, 2, duration_of_stress());
}

TEST_CASE("closing while eight threads call ends all of them") {
  RealStore real;
  REQUIRE(real.open().is_ok());
  const std::vector<Shape> shapes = {{real.add_namespace(5000), 5000}};
  std::atomic<int> num_running{0};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      ++num_running;
      Worker(real, shapes, 300 + i)
          .run_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(400));
    });
  }
  while (num_running.load() < 8) std::this_thread::yield();
  CHECK(real.store->close(5 * kNsPerS).is_ok());
  for (std::thread& thread : threads) thread.join();
  CHECK(real.num_wrong.load() == 0);
  CHECK(real.store->flush(kNsPerS).status().code() == StatusCode::kClosed);
  REQUIRE(real.open().is_ok());
  CHECK(real.store->check_consistency().is_ok());
}
