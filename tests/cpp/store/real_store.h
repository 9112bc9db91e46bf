// RealStore: a store with the system's clock, threads and files in a temporary folder. The calls
// are as thread-safe as the store's own.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

#include "store_world.h"
#include "testing/temporary_folder.h"

namespace kvtier::testing {

/// Report E14: what tools/run_tests.sh runs once more with each engine.
inline IoMode io_mode_of_run() {
  const char* io = std::getenv("KVTIER_TEST_IO");
  return io == nullptr                       ? IoMode::kAuto
         : std::string_view(io) == "threads" ? IoMode::kThreads
                                             : IoMode::kUring;
}

class RealStore {
 public:
  RealStore() {
    options.io = io_mode_of_run();
    options.path = folder.path() + "/store";
    options.host_bytes = 2 << 20;
    options.disk_bytes = 16 << 20;
    options.staging_bytes = 1 << 20;
    options.num_io_threads = 4;
  }

  ~RealStore() {
    // With patience: what a busy device still holds half a second later would be leaked on purpose.
    if (store) (void)store->close(60 * kNsPerS).is_ok();
    store.reset();  // It may log.
  }

  Status open() {
    auto opened = Store::open(options, [this](const char* level, const std::string& text) {
      const std::lock_guard<std::mutex> lock(log_mutex_);
      log_.push_back(std::string(level) + ": " + text);
    });
    if (!opened.is_ok()) return opened.status();
    store = std::move(opened).value();
    if (options.io == IoMode::kThreads) REQUIRE(store->stats().disk.mode_io == "threads");
    return Status::ok();
  }

  std::uint32_t add_namespace(std::uint64_t block_bytes) {
    NamespaceOptions space;
    space.id = key_of(0x1000000 + block_bytes);
    space.description = "{}";
    space.block_bytes = block_bytes;
    auto added = store->add_namespace(space);
    REQUIRE_MESSAGE(added.is_ok(), added.status().to_string());
    return added.value();
  }

  /// Calls from any thread: no checks of the test framework in here.
  std::vector<Outcome> put(std::uint32_t space, std::uint64_t first, std::size_t num_blocks,
                           std::size_t block_bytes, std::uint64_t generation = 0) {
    const auto keys = keys_of(first, num_blocks);
    std::vector<std::vector<std::byte>> payloads;
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      payloads.push_back(payload_of(first + i, block_bytes, generation));
    }
    for (const auto& payload : payloads) sources.push_back(payload.data());
    PutRequest request;
    request.namespace_index = space;
    request.keys = keys;
    request.sources = sources;
    request.timeout_ns = timeout_ns;
    auto outcomes = store->put(request);
    return outcomes.is_ok() ? outcomes.value() : std::vector<Outcome>(num_blocks, Outcome::kFailed);
  }
  /// Counts blocks whose bytes are not those of generation 0 in `num_wrong`.
  std::vector<Outcome> get(std::uint32_t space, std::uint64_t first, std::size_t num_blocks,
                           std::size_t block_bytes, bool is_prefix = true) {
    const auto keys = keys_of(first, num_blocks);
    std::vector<std::vector<std::byte>> targets(num_blocks, std::vector<std::byte>(block_bytes));
    std::vector<std::byte*> addresses;
    for (auto& target : targets) addresses.push_back(target.data());
    GetRequest request;
    request.namespace_index = space;
    request.keys = keys;
    request.targets = addresses;
    request.is_prefix = is_prefix;
    request.timeout_ns = timeout_ns;
    auto outcomes = store->get(request);
    if (!outcomes.is_ok()) return std::vector<Outcome>(num_blocks, Outcome::kFailed);
    for (std::size_t i = 0; i < num_blocks; ++i) {
      if (outcomes.value()[i] != Outcome::kDone) continue;
      if (targets[i] != payload_of(first + i, block_bytes)) ++num_wrong;
    }
    return outcomes.value();
  }

  std::vector<std::string> log() {
    const std::lock_guard<std::mutex> lock(log_mutex_);
    return log_;
  }

  TemporaryFolder folder;
  StoreOptions options;
  std::shared_ptr<Store> store;
  TimeNs timeout_ns = 30 * kNsPerS;
  std::atomic<std::uint64_t> num_wrong{0};  // Relaxed would do: read after the threads ended.

 private:
  std::mutex log_mutex_;
  std::vector<std::string> log_;
};

}  // namespace kvtier::testing
