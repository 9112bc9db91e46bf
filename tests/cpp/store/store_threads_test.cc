// Real threads on a real directory: leases released twice (C6), staging shared fairly (G7), nobody
// polling (G10), a directory that vanishes (H5), a directory in use, one key put by many.
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "real_store.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

void run_threads(std::size_t num_threads, const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < num_threads; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

/// Lets real time pass until `is_true`, five seconds at most.
bool becomes_true(const std::function<bool()>& is_true) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

TEST_CASE("C6: a lease released by two threads at once is released once") {
  RealStore real;
  REQUIRE(real.open().is_ok());
  const auto space = real.add_namespace(1000);
  real.put(space, 0, 4, 1000);
  for (int round = 0; round < 200; ++round) {
    auto lease = real.store->lease(space, keys_of(0, 4), true, 60 * kNsPerS);
    REQUIRE(lease.value().lease_id != 0);
    std::atomic<int> num_released{0};
    run_threads(2, [&](std::size_t) {
      if (real.store->release(lease.value().lease_id)) ++num_released;
    });
    REQUIRE(num_released.load() == 1);
  }
  CHECK(real.store->stats().host.leased_bytes == 0);
  CHECK(real.store->stats().live_leases == 0);
  CHECK(real.store->check_consistency().is_ok());
}

TEST_CASE("G7: sixteen gets of three blocks finish with staging for four") {
  RealStore real;
  real.options.host_bytes = 0;
  real.options.staging_bytes = 4 * (64 << 10);
  REQUIRE(real.open().is_ok());
  const auto space = real.add_namespace(64 << 10);
  for (std::uint64_t i = 0; i < 16; ++i) {
    REQUIRE(count_done(real.put(space, i * 10, 3, 64 << 10)) == 3);
  }
  std::atomic<std::size_t> num_done{0};
  run_threads(16, [&](std::size_t i) {
    for (std::size_t round = 0; round < 5; ++round) {
      num_done += count_done(real.get(space, (i + round) % 16 * 10, 3, 64 << 10));
    }
  });
  CHECK(num_done.load() == 16 * 5 * 3);
  CHECK(real.num_wrong.load() == 0);
  CHECK(real.store->stats().staging_bytes_used == 0);
}

TEST_CASE("G7: puts and gets that need all of staging take turns") {
  RealStore real;
  real.options.host_bytes = 0;
  real.options.staging_bytes = 2 * (64 << 10);
  REQUIRE(real.open().is_ok());
  const auto space = real.add_namespace(60'000);
  std::atomic<std::size_t> num_put{0};
  std::atomic<std::size_t> num_got{0};
  run_threads(8, [&](std::size_t i) {
    num_put += count_done(real.put(space, i * 10, 5, 60'000));
    num_got += count_done(real.get(space, i * 10, 5, 60'000));
  });
  CHECK(num_put.load() == 40);
  CHECK(num_got.load() == 40);
  CHECK(real.num_wrong.load() == 0);
}

TEST_CASE("G10: after a thousand puts that nobody looks after again everything is free") {
  RealStore real;
  REQUIRE(real.open().is_ok());
  const auto space = real.add_namespace(4096);
  std::size_t num_done = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) num_done += count_done(real.put(space, i, 1, 4096));
  CHECK(num_done == 1000);
  CHECK(becomes_true([&] { return real.store->stats().disk.backlog_bytes == 0; }));
  CHECK(real.store->stats().staging_bytes_used == 0);
  CHECK(count_done(real.put(space, 5000, 100, 4096)) == 100);
}

TEST_CASE("one key put by eight threads at once is stored once and all hear the same") {
  for (const std::uint64_t host_bytes : {std::uint64_t{2} << 20, std::uint64_t{0}}) {
    CAPTURE(host_bytes);
    RealStore real;
    real.options.host_bytes = host_bytes;
    REQUIRE(real.open().is_ok());
    const auto space = real.add_namespace(100'000);
    for (std::uint64_t round = 0; round < 20; ++round) {
      std::atomic<std::size_t> num_done{0};
      run_threads(
          8, [&](std::size_t) { num_done += count_done(real.put(space, round * 10, 2, 100'000)); });
      CHECK(num_done.load() == 16);
      CHECK(count_done(real.get(space, round * 10, 2, 100'000)) == 2);
    }
    CHECK(real.num_wrong.load() == 0);
    const StoreStats stats = real.store->stats();
    CHECK((host_bytes > 0 ? stats.host.inserted : stats.disk.inserted) >= 40);
    CHECK(stats.disk.inserted <= 40);
  }
}

TEST_CASE("a child put while another thread still puts its parent is stored after it") {
  for (const std::uint64_t host_bytes : {std::uint64_t{4} << 20, std::uint64_t{0}}) {
    CAPTURE(host_bytes);
    RealStore real;
    real.options.host_bytes = host_bytes;
    REQUIRE(real.open().is_ok());
    const std::size_t block_bytes = 200'000;
    const auto space = real.add_namespace(block_bytes);
    for (std::uint64_t round = 0; round < 20; ++round) {
      // Whoever comes first: the longer chain holds the shorter one, so its tail hangs on the
      // other.
      std::atomic<std::size_t> num_done{0};
      run_threads(4, [&](std::size_t i) {
        num_done += count_done(real.put(space, round * 100, 1 + i, block_bytes));
      });
      CHECK(num_done.load() == 1 + 2 + 3 + 4);
      CHECK(count_done(real.get(space, round * 100, 4, block_bytes)) == 4);
    }
    CHECK(real.num_wrong.load() == 0);
    CHECK(real.store->check_consistency().is_ok());
  }
}

TEST_CASE("a directory in use is refused with the holder's pid, and free again when it ends") {
  RealStore real;
  REQUIRE(real.open().is_ok());
  RealStore second;
  second.options.path = real.options.path;
  const Status busy = second.open();
  CHECK(busy.code() == StatusCode::kBusy);
  CHECK(busy.message().find("pid " + std::to_string(::getpid())) != std::string::npos);
  CHECK(busy.message().find(real.options.path) != std::string::npos);
  CHECK(real.store->close(kNsPerS).is_ok());
  CHECK(second.open().is_ok());
}

TEST_CASE("H5: a directory removed while puts and gets go on costs its blocks and is made again") {
  RealStore real;
  REQUIRE(real.open().is_ok());
  const auto space = real.add_namespace(5000);
  for (std::uint64_t chain = 0; chain < 20; ++chain) real.put(space, chain * 100, 10, 5000);
  REQUIRE(real.store->flush(10 * kNsPerS).is_ok());
  std::filesystem::remove_all(real.options.path);
  std::uint64_t number = 10'000;
  const bool is_back = becomes_true([&] {
    real.put(space, number, 3, 5000);
    real.get(space, number, 3, 5000);
    real.get(space, number % 20 * 100, 10, 5000);
    number += 10;
    return std::filesystem::exists(real.options.path + "/kvtier.superblock");
  });
  CHECK(is_back);
  CHECK(real.num_wrong.load() == 0);
  CHECK(becomes_true([&] {
    real.put(space, number += 10, 3, 5000);
    return real.store->stats().disk.blocks > 0;
  }));
  CHECK(real.store->check_consistency().is_ok());
  REQUIRE(real.store->flush(10 * kNsPerS).is_ok());
  const std::uint64_t num_on_disk = real.store->stats().disk.blocks;
  CHECK(real.store->close(10 * kNsPerS).is_ok());
  REQUIRE(real.open().is_ok());
  CHECK(real.store->stats().recovered_blocks >= num_on_disk);
  CHECK(count_done(real.get(real.add_namespace(5000), number, 3, 5000)) == 3);
  CHECK(real.num_wrong.load() == 0);
}

TEST_CASE("H5: a directory that somebody else took meanwhile stays theirs") {
  RealStore real;
  REQUIRE(real.open().is_ok());
  const auto space = real.add_namespace(5000);
  real.put(space, 0, 10, 5000);
  REQUIRE(real.store->flush(10 * kNsPerS).is_ok());
  std::filesystem::remove_all(real.options.path);
  RealStore second;
  second.options.path = real.options.path;
  REQUIRE(second.open().is_ok());
  second.put(second.add_namespace(5000), 0, 10, 5000);
  REQUIRE(second.store->flush(10 * kNsPerS).is_ok());
  CHECK(becomes_true([&] {
    real.put(space, 1000, 1, 5000);
    return real.store->stats().disk.health == Health::kOff;
  }));
  CHECK(count_done(real.put(space, 2000, 3, 5000)) == 3);
  CHECK(count_done(real.get(space, 2000, 3, 5000)) == 3);
  CHECK(second.store->close(10 * kNsPerS).is_ok());
  // The first one looks at its directory every second; it must not think it free now.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  (void)becomes_true([&] {
    real.put(space, 1000, 1, 5000);
    return std::chrono::steady_clock::now() > end;
  });
  REQUIRE(second.open().is_ok());
  CHECK(second.store->stats().recovered_blocks == 10);
  CHECK(count_done(second.get(second.add_namespace(5000), 0, 10, 5000)) == 10);
  CHECK(second.num_wrong.load() == 0);
  CHECK(real.store->stats().disk.health == Health::kOff);
}

TEST_CASE("a real directory keeps what flush promised, through direct I/O where there is some") {
  RealStore real;
  real.options.host_bytes = 16 << 20;
  REQUIRE(real.open().is_ok());
  for (const std::size_t block_bytes : {1, 511, 4097, 100'001}) {
    CHECK(count_done(real.put(real.add_namespace(block_bytes), 0, 10, block_bytes)) == 10);
  }
  REQUIRE(real.store->flush(10 * kNsPerS).is_ok());
  CHECK(real.store->close(10 * kNsPerS).is_ok());
  REQUIRE(real.open().is_ok());
  for (const std::size_t block_bytes : {1, 511, 4097, 100'001}) {
    CHECK(count_done(real.get(real.add_namespace(block_bytes), 0, 10, block_bytes)) == 10);
  }
  CHECK(real.num_wrong.load() == 0);
  CHECK(real.store->stats().disk.hits == 40);
}
