// StoreWorld: a store on a simulated disk and clock, with payloads that name their key. One thread.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "disk/directory_double.h"
#include "store/store.h"
#include "testing/sim_world.h"

namespace kvtier::testing {

inline BlockKey key_of(std::uint64_t number) {
  BlockKey key;
  // Spread like a digest; the number stands in clear in the second half.
  const std::uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15ull;
  std::memcpy(key.bytes.data(), &mixed, 8);
  std::memcpy(key.bytes.data() + 8, &number, 8);
  return key;
}

inline std::vector<BlockKey> keys_of(std::uint64_t first, std::size_t num_keys) {
  std::vector<BlockKey> keys;
  for (std::size_t i = 0; i < num_keys; ++i) keys.push_back(key_of(first + i));
  return keys;
}

/// Every 8 bytes say which block, which generation and which place they belong to.
inline std::vector<std::byte> payload_of(std::uint64_t number, std::size_t num_bytes,
                                         std::uint64_t generation = 0) {
  std::vector<std::byte> bytes(num_bytes);
  for (std::size_t at = 0; at < num_bytes; at += 8) {
    const std::uint64_t word = (number * 0x9e3779b97f4a7c15ull) ^ (generation << 48) ^
                               (at * 0xff51afd7ed558ccdull) ^ number;
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, num_bytes - at));
  }
  return bytes;
}

class StoreWorld {
 public:
  explicit StoreWorld(std::uint64_t seed = 1, SimOptions sim = {}) : seed_(seed) {
    sim.seed = seed;
    disk = std::make_unique<SimDisk>(*clock, sim);
    options.path = "/simulated";
    options.host_bytes = 8 << 20;
    options.disk_bytes = 64 << 20;
    options.staging_bytes = 4 << 20;
  }
  ~StoreWorld() { store.reset(); }

  Status open() {
    StoreSeams seams;
    seams.clock = clock;
    executor = std::shared_ptr<Executor>(make_sim_executor(*clock, *disk, seed_));
    seams.executor = executor;
    seams.numa = numa;
    if (!options.path.empty()) {
      seams.directory = std::make_unique<DirectoryDouble>(disk->make_directory(), hooks);
      seams.io_engine = disk->make_io_engine();
      if (wrap_io_engine) seams.io_engine = wrap_io_engine(std::move(seams.io_engine));
    }
    seams.log = [this](const char* level, const std::string& text) {
      log.push_back(std::string(level) + ": " + text);
    };
    auto opened = Store::open(options, std::move(seams));
    if (!opened.is_ok()) return opened.status();
    store = std::move(opened).value();
    return Status::ok();
  }
  /// Power loss (or kill -9) and a new start.
  Status crash_and_open(bool keeps_all) {
    crash(keeps_all);
    return open();
  }
  void crash(bool keeps_all) {
    disk->crash(keeps_all);
    store.reset();
  }

  std::uint32_t add_namespace(std::uint64_t block_bytes, std::uint64_t number = 0,
                              std::vector<std::uint64_t> part_bytes = {}) {
    NamespaceOptions space;
    space.id = key_of(0x1000000 + number * 1000003 + block_bytes);
    space.description = "{\"block_bytes\": " + std::to_string(block_bytes) + "}";
    space.block_bytes = block_bytes;
    space.part_bytes = std::move(part_bytes);
    auto added = store->add_namespace(space);
    REQUIRE_MESSAGE(added.is_ok(), added.status().to_string());
    return added.value();
  }

  std::vector<Outcome> put(std::uint32_t space, std::uint64_t first, std::size_t num_blocks,
                           std::size_t block_bytes, std::optional<BlockKey> parent = {},
                           bool is_chain = true) {
    const auto keys = keys_of(first, num_blocks);
    std::vector<std::vector<std::byte>> payloads;
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      payloads.push_back(payload_of(first + i, block_bytes));
      sources.push_back(payloads.back().data());
    }
    PutRequest request;
    request.namespace_index = space;
    request.keys = keys;
    request.sources = sources;
    request.parent = parent;
    request.is_chain = is_chain;
    request.timeout_ns = timeout_ns;
    auto outcomes = store->put(request);
    REQUIRE_MESSAGE(outcomes.is_ok(), outcomes.status().to_string());
    return outcomes.value();
  }

  /// Gets, and checks every delivered byte and that nothing else was touched.
  std::vector<Outcome> get(std::uint32_t space, std::uint64_t first, std::size_t num_blocks,
                           std::size_t block_bytes, bool is_prefix = true) {
    const auto keys = keys_of(first, num_blocks);
    const std::vector<std::byte> canary(block_bytes, std::byte{0x5c});
    std::vector<std::vector<std::byte>> targets(num_blocks, canary);
    std::vector<std::byte*> addresses;
    for (auto& target : targets) addresses.push_back(target.data());
    GetRequest request;
    request.namespace_index = space;
    request.keys = keys;
    request.targets = addresses;
    request.is_prefix = is_prefix;
    request.timeout_ns = timeout_ns;
    auto outcomes = store->get(request);
    REQUIRE_MESSAGE(outcomes.is_ok(), outcomes.status().to_string());
    for (std::size_t i = 0; i < num_blocks; ++i) {
      const bool is_done = outcomes.value()[i] == Outcome::kDone;
      const auto expected = is_done ? payload_of(first + i, block_bytes) : canary;
      const bool is_right = targets[i] == expected;
      REQUIRE_MESSAGE(is_right, "wrong bytes: block=" << first + i << " done=" << is_done);
    }
    return outcomes.value();
  }

  std::size_t lookup(std::uint32_t space, std::uint64_t first, std::size_t num_blocks) {
    auto found = store->lookup(space, keys_of(first, num_blocks), true);
    REQUIRE(found.is_ok());
    return found.value().num_blocks;
  }

  /// Reopens after a clean close.
  Status restart() {
    const Status closed = store->close(60 * kNsPerS);
    store.reset();
    return closed.is_ok() ? open() : closed;
  }
  std::size_t num_log_lines_with(const std::string& text) const {
    std::size_t num_lines = 0;
    for (const std::string& line : log) num_lines += line.find(text) == std::string::npos ? 0 : 1;
    return num_lines;
  }
  void check_consistency() {
    const Status consistent = store->check_consistency();
    REQUIRE_MESSAGE(consistent.is_ok(), consistent.to_string());
  }
  void flush() {
    auto flushed = store->flush(60 * kNsPerS);
    REQUIRE_MESSAGE(flushed.is_ok(), flushed.status().to_string());
  }

  std::shared_ptr<SimClock> clock = std::make_shared<SimClock>();
  std::shared_ptr<DirectoryHooks> hooks = std::make_shared<DirectoryHooks>();
  std::unique_ptr<SimDisk> disk;
  StoreOptions options;
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap_io_engine;
  NumaSystem numa = real_numa_system();
  std::shared_ptr<Executor> executor;
  std::shared_ptr<Store> store;
  std::vector<std::string> log;
  TimeNs timeout_ns = 30 * kNsPerS;

 private:
  const std::uint64_t seed_;
};

inline std::size_t count_done(const std::vector<Outcome>& outcomes) {
  std::size_t num_done = 0;
  for (const Outcome outcome : outcomes) num_done += outcome == Outcome::kDone ? 1 : 0;
  return num_done;
}

}  // namespace kvtier::testing
