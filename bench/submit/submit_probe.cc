// How long the transfer engine works by itself to hand 256 blocks to a device, over a device that
// does nothing; no GPU needed. Prints a line of JSON a case. For one thread.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "sink_device.h"
#include "transfer/transfer_engine.h"

namespace kvtier {
namespace {

using namespace transfer;

constexpr std::uint64_t kGiB = 1ull << 30;
constexpr std::uint64_t kNumBlocks = 256;
constexpr std::uint64_t kFragments = 28;
constexpr std::uint64_t kRows = 4096;
constexpr int kTurns = 200;

// Addresses that nobody reads: of tensors and of the arena.
std::byte* address(std::uint64_t offset_bytes) {
  return reinterpret_cast<std::byte*>((1ull << 44) + offset_bytes);
}

struct Case {
  std::uint64_t fragment_bytes = 0;
  TransferMethod method = TransferMethod::kStaged;
  /// How the arena is page-locked: in one range, or in pieces as the background does it.
  std::uint64_t num_ranges = 1;
};

struct Engine {
  Engine() {
    TransferOptions options;
    options.has_thread = false;
    options.is_calibrated = false;
    engine = std::move(TransferEngine::create(device, clock, options)).value();
  }
  SystemClock clock;
  SinkDevice device;
  std::unique_ptr<TransferEngine> engine;
};

// Microseconds of the engine's thread for each of the jobs, in ascending order.
std::vector<double> measure_us(TransferEngine& engine, const TransferRequest& request) {
  std::vector<double> times_us;
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::uint64_t before_ns = engine.stats().submit_ns;
    const auto job_id = engine.submit(request);
    if (!job_id.is_ok()) {
      std::printf("cannot submit: %s\n", job_id.status().message().c_str());
      return {0};
    }
    while (!engine.wait(job_id.value(), 0)) engine.advance();
    (void)engine.take(job_id.value());
    times_us.push_back(static_cast<double>(engine.stats().submit_ns - before_ns) / 1e3);
  }
  std::sort(times_us.begin(), times_us.end());
  return times_us;
}

void run_case(const Case& it) {
  Engine made;
  TransferEngine& engine = *made.engine;
  const std::uint64_t block_bytes = it.fragment_bytes * kFragments;
  std::vector<layout::TensorPlace> tensors;
  std::vector<layout::FragmentPlace> fragments;
  const std::uint64_t tensor_bytes = kRows * it.fragment_bytes;
  for (std::uint32_t index = 0; index < kFragments; ++index) {
    tensors.push_back({address(index * tensor_bytes), tensor_bytes});
    fragments.push_back({index, 0, it.fragment_bytes, it.fragment_bytes});
  }
  const auto attached = engine.attach(tensors, fragments, {&block_bytes, 1});
  const std::uint64_t arena_bytes = 256 * kGiB;
  std::byte* arena = address(1024 * kGiB);
  const std::uint64_t range_bytes = arena_bytes / it.num_ranges;
  for (std::uint64_t index = 0; index < it.num_ranges; ++index) {
    engine.add_page_locked_memory({arena + index * range_bytes, range_bytes});
  }
  std::vector<std::int64_t> block_ids;
  std::vector<std::byte*> slots;
  const std::uint64_t num_slots = range_bytes / block_bytes * it.num_ranges;
  for (std::uint64_t index = 0; index < kNumBlocks; ++index) {
    block_ids.push_back(static_cast<std::int64_t>(index * 7919 % kRows));
    // In runs of eight that lie anywhere, as slots of an arena in use do.
    const std::uint64_t slot = (index / 8 * 104'729 + index % 8) % num_slots;
    const std::uint64_t slots_per_range = range_bytes / block_bytes;
    slots.push_back(arena + slot / slots_per_range * range_bytes +
                    slot % slots_per_range * block_bytes);
  }
  const std::vector<ChecksumSeed> seeds(kNumBlocks);
  TransferRequest request;
  request.direction = TransferDirection::kSave;
  request.attachment_id = attached.value();
  request.block_ids = block_ids;
  request.slots = slots;
  request.seeds = seeds;
  request.method = it.method;
  const std::vector<double> times_us = measure_us(engine, request);
  std::printf(
      "{\"what\": \"submit\", \"blocks\": %lu, \"fragment_bytes\": %lu, \"method\": \"%s\", "
      "\"ranges\": %lu, \"engine_us\": %.1f, \"engine_us_min\": %.1f}\n",
      kNumBlocks, it.fragment_bytes, method_name(it.method), it.num_ranges,
      times_us[times_us.size() / 2], times_us.front());
}

int run() {
  for (const std::uint64_t fragment_bytes : {1024, 32768}) {
    for (const auto method :
         {TransferMethod::kCopyEngine, TransferMethod::kStaged, TransferMethod::kZeroCopy}) {
      for (const std::uint64_t num_ranges : {1, 256}) {
        run_case({fragment_bytes, method, num_ranges});
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvtier

int main() { return kvtier::run(); }
