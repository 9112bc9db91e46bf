// What the transfer probe measures with: memory, bare copies, cases of one geometry, and a report.
// For one thread.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gpu_bench.h"
#include "transfer/transfer_engine.h"

namespace kvtier {

using namespace transfer;
using testing::GpuBench;

inline constexpr std::uint64_t kMiB = 1u << 20;
inline constexpr std::uint64_t kMemoryBytes = 1024 * kMiB;
inline constexpr std::uint64_t kFragments = 28;
inline constexpr TransferDirection kDirections[] = {TransferDirection::kSave,
                                                    TransferDirection::kLoad};
inline constexpr TransferMethod kMethods[] = {TransferMethod::kCopyEngine, TransferMethod::kStaged,
                                              TransferMethod::kZeroCopy, TransferMethod::kAuto};

inline const char* name_of(TransferDirection direction) {
  return direction == TransferDirection::kSave ? "D2H" : "H2D";
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The lines of JSON, one for each figure.
class Report {
 public:
  explicit Report(const char* path) : file_(path == nullptr ? nullptr : std::fopen(path, "w")) {}
  ~Report() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void add(const std::string& what, const std::string& fields) {
    std::printf("%-12s %s\n", what.c_str(), fields.c_str());
    std::fflush(stdout);
    if (file_ == nullptr) return;
    std::fprintf(file_, "{\"what\": \"%s\", %s}\n", what.c_str(), fields.c_str());
  }

 private:
  std::FILE* const file_;
};

template <typename... Values>
std::string text(const char* format, Values... values) {
  char line[400];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

/// Memory, bare copies and an engine.
class Probe {
 public:
  explicit Probe(GpuBench& gpu_bench)
      : bench(gpu_bench),
        blocks{bench.make_memory(kMemoryBytes), bench.make_memory(kMemoryBytes)},
        slots{bench.make_page_locked(kMemoryBytes), bench.make_page_locked(kMemoryBytes)},
        stream(bench.make_stream()) {
    // Data of no pattern, since links and memories may treat some well.
    std::uint64_t word = 88172645463325252ull;
    auto* words = reinterpret_cast<std::uint64_t*>(slots[1].data());
    for (std::uint64_t index = 0; index < kMemoryBytes / 8; ++index) {
      word ^= word << 13;
      word ^= word >> 7;
      word ^= word << 17;
      words[index] = word;
    }
    bench.write(blocks[0], slots[1]);
    for (std::size_t index = 0; index < 2; ++index) {
      lanes[index] = bench.device().create_lane(LanePriority::kLoad).value();
      begins[index] = bench.device().create_event(EventUse::kTiming).value();
      ends[index] = bench.device().create_event(EventUse::kTiming).value();
    }
  }

  std::unique_ptr<TransferEngine> make_engine(const TransferOptions& options) {
    auto engine = TransferEngine::create(bench.device(), clock, options);
    if (!engine.is_ok()) {
      std::printf("no engine: %s\n", engine.status().message().c_str());
      std::exit(1);
    }
    if (!engine.value()->note().empty()) std::printf("note: %s\n", engine.value()->note().c_str());
    for (const auto memory : slots) engine.value()->add_page_locked_memory(memory);
    return std::move(engine).value();
  }

  /// Seconds of one bare copy, by the device's time.
  double copy_s(TransferDirection direction, std::uint64_t num_bytes) {
    start_copy(direction, num_bytes);
    return finish_copy(direction);
  }
  void start_copy(TransferDirection direction, std::uint64_t num_bytes) {
    const auto index = static_cast<std::size_t>(direction);
    const bool is_save = direction == TransferDirection::kSave;
    const CopyPiece piece{is_save ? blocks[index].data() : slots[index].data(),
                          is_save ? slots[index].data() : blocks[index].data(), num_bytes};
    (void)bench.device().record_lane(lanes[index], begins[index]);
    (void)bench.device().submit_copies(lanes[index], {&piece, 1});
    (void)bench.device().record_lane(lanes[index], ends[index]);
  }
  double finish_copy(TransferDirection direction) {
    const auto index = static_cast<std::size_t>(direction);
    (void)bench.device().wait_event(ends[index], kNeverNs);
    const auto elapsed_ns = bench.device().elapsed_ns(begins[index], ends[index]);
    return static_cast<double>(elapsed_ns.is_ok() ? elapsed_ns.value() : 0) / 1e9;
  }
  /// GB/s of one large copy; remembered, so that the best of the run is known.
  double limit(TransferDirection direction) {
    const double rate = 256e-9 * static_cast<double>(kMiB) / copy_s(direction, 256 * kMiB);
    limits[static_cast<std::size_t>(direction)].push_back(rate);
    return rate;
  }
  double best_limit(TransferDirection direction) const {
    const auto& seen = limits[static_cast<std::size_t>(direction)];
    return seen.empty() ? 0 : *std::max_element(seen.begin(), seen.end());
  }
  double limit_both() {
    const TimeNs begin_ns = clock.now_ns();
    for (const auto direction : kDirections) start_copy(direction, 512 * kMiB);
    for (const auto direction : kDirections) (void)finish_copy(direction);
    return 1024e-0 * static_cast<double>(kMiB) / static_cast<double>(clock.now_ns() - begin_ns);
  }

  GpuBench& bench;
  SystemClock clock;
  std::span<std::byte> blocks[2];  // By direction.
  std::span<std::byte> slots[2];
  StreamId stream;
  LaneId lanes[2];
  Event begins[2];
  Event ends[2];
  std::vector<double> limits[2];
};

/// One geometry on an engine: `fragments` tensors, so that a block's fragments lie far apart.
class Case {
 public:
  Case(Probe& probe, TransferEngine& engine, std::uint64_t fragment_bytes,
       std::uint64_t num_fragments, std::uint64_t num_bytes)
      : probe_(probe), engine_(engine), block_bytes(fragment_bytes * num_fragments) {
    num_blocks = std::max<std::uint64_t>(1, num_bytes / block_bytes);
    const std::uint64_t tensor_bytes = kMemoryBytes / num_fragments / 4096 * 4096;
    const std::uint64_t num_places = tensor_bytes / fragment_bytes;
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<layout::TensorPlace> tensors;
      std::vector<layout::FragmentPlace> fragments;
      for (std::uint32_t index = 0; index < num_fragments; ++index) {
        tensors.push_back({probe.blocks[side].data() + index * tensor_bytes, tensor_bytes});
        fragments.push_back({index, 0, fragment_bytes, fragment_bytes});
      }
      const auto attached = engine.attach(tensors, fragments, {&block_bytes, 1});
      if (!attached.is_ok())
        std::printf("cannot attach: %s\n", attached.status().message().c_str());
      attachments_[side] = attached.is_ok() ? attached.value() : 0;
    }
    seeds_.resize(num_blocks);
    std::vector<bool> is_taken(num_places);
    for (std::uint64_t index = 0; index < num_blocks; ++index) {
      std::uint64_t place = index * 7919 % num_places;
      while (is_taken[place]) place = (place + 1) % num_places;
      is_taken[place] = true;
      block_ids_.push_back(static_cast<std::int64_t>(place));
    }
  }
  ~Case() {
    for (const AttachmentId attachment_id : attachments_) (void)engine_.detach(attachment_id);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  std::uint64_t num_bytes() const { return num_blocks * block_bytes; }

  Result<TransferJobId> start(TransferDirection direction, TransferMethod method, bool is_hashed) {
    const auto side = static_cast<std::size_t>(direction);
    slots_.resize(num_blocks);
    for (std::uint64_t index = 0; index < num_blocks; ++index) {
      slots_[index] = probe_.slots[side].data() + index * block_bytes;
    }
    TransferRequest request;
    request.direction = direction;
    request.attachment_id = attachments_[side];
    request.block_ids = block_ids_;
    request.slots = slots_;
    request.stream = probe_.stream;
    request.method = method;
    if (is_hashed) request.seeds = seeds_;
    if (is_hashed && direction == TransferDirection::kLoad) {
      // What is loaded never changes.
      for (std::uint64_t index = sums_.size(); index < num_blocks; ++index) {
        sums_.push_back(checksum_part({slots_[index], block_bytes}, ChecksumSeed{}));
      }
      request.checksums = sums_;
    }
    const TimeNs begin_ns = probe_.clock.now_ns();
    auto job_id = engine_.submit(request);
    submit_us = static_cast<double>(probe_.clock.now_ns() - begin_ns) / 1e3;
    return job_id;
  }
  TransferResult finish(Result<TransferJobId> job_id) {
    TransferResult result;
    if (!job_id.is_ok()) {
      result.status = job_id.status();
    } else {
      engine_.wait(job_id.value(), kNeverNs);
      result = std::move(engine_.take(job_id.value())).value();
    }
    if (!result.status.is_ok()) std::printf("FAILED: %s\n", result.status.message().c_str());
    return result;
  }
  /// Median seconds, by the device's time.
  double median_s(TransferDirection direction, TransferMethod method, bool is_hashed,
                  std::size_t num_repeats) {
    std::vector<double> times_s;
    for (std::size_t turn = 0; turn <= num_repeats; ++turn) {
      const TransferResult result = finish(start(direction, method, is_hashed));
      used = result.method;
      if (turn > 0) times_s.push_back(static_cast<double>(result.device_ns) / 1e9);
    }
    return median(times_s);
  }

 private:
  Probe& probe_;
  TransferEngine& engine_;
  AttachmentId attachments_[2] = {};
  std::vector<std::int64_t> block_ids_;
  std::vector<std::byte*> slots_;
  std::vector<ChecksumSeed> seeds_;
  std::vector<std::uint64_t> sums_;

 public:
  const std::uint64_t block_bytes;
  std::uint64_t num_blocks = 0;
  double submit_us = 0;
  TransferMethod used = TransferMethod::kAuto;
};

}  // namespace kvtier
