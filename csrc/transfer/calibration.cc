// Measures the methods through the engine itself, with memory that is given back. For one thread.
#include "transfer/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvtier::transfer {
namespace {

// Of device and of page-locked memory each, while it is measured.
constexpr std::uint64_t kScratchBytes = 24u << 20;
constexpr std::uint64_t kShortBytes = 256u << 10;
// Copies of the copy engine that a measurement may take: each costs microseconds.
constexpr std::uint64_t kCopiesMax = 512;
constexpr std::uint64_t kFragmentsPerBlock = 8;
constexpr std::size_t kNumRepeats = 3;
constexpr TimeNs kMeasureNsMax = 450 * kNsPerMs;
constexpr TimeNs kJobNsMax = 100 * kNsPerMs;
// For an engine that is driven, whose clock may stand still.
constexpr std::size_t kTurnsMax = 4096;
// Classes that are measured; those between are taken from their neighbours.
constexpr std::array<std::size_t, 5> kMeasuredClasses = {1, 3, 5, 7, 10};

/// Device and page-locked memory for the length of the calibration.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}
  ~Scratch() {
    if (is_in_use_) return;
    device_.deallocate(blocks_);
    device_.deallocate_page_locked(slots_);
  }
  /// Leaves the memory to the device, which may be using it.
  void leave() { is_in_use_ = true; }
  bool is_in_use() const { return is_in_use_; }
  Status allocate() {
    Result<std::byte*> blocks = device_.allocate(kScratchBytes);
    if (!blocks.is_ok()) return blocks.status();
    blocks_ = blocks.value();
    Result<std::byte*> slots = device_.allocate_page_locked(kScratchBytes);
    if (!slots.is_ok()) return slots.status();
    slots_ = slots.value();
    return Status::ok();
  }
  std::byte* blocks() const { return blocks_; }
  std::byte* slots() const { return slots_; }

 private:
  Device& device_;
  std::byte* blocks_ = nullptr;
  std::byte* slots_ = nullptr;
  bool is_in_use_ = false;
};

// A point that is reached at once. Not one of the engine's default stream: that waits for whatever
// other streams are doing.
Result<std::shared_ptr<const ReadyPoint>> make_ready(Device& device) {
  Result<LaneId> lane = device.create_lane(LanePriority::kSave);
  if (!lane.is_ok()) return lane.status();
  Result<Event> event = device.create_event();
  std::shared_ptr<const ReadyPoint> ready;
  Status recorded = event.status();
  if (event.is_ok()) {
    ready = std::make_shared<const ReadyPoint>(device, event.value());
    recorded = device.record_lane(lane.value(), ready->event());
  }
  device.destroy_lane(lane.value());
  if (!recorded.is_ok()) return recorded;
  return ready;
}

// Whether the job ended in time.
bool wait_for_job(TransferEngine& engine, Clock& clock, TransferJobId job_id) {
  TimeNs now_ns = clock.now_ns();
  const TimeNs deadline_ns = now_ns + kJobNsMax;
  for (std::size_t turn = 0; turn < kTurnsMax && now_ns <= deadline_ns; ++turn) {
    if (engine.wait(job_id, deadline_ns)) return true;
    const TimeNs before_ns = std::exchange(now_ns, clock.now_ns());
    if (now_ns > before_ns) turn = 0;
  }
  return false;
}

/// Blocks of eight equal fragments that lie apart, as an engine's layers do.
Result<AttachmentId> attach_scratch(TransferEngine& engine, const Scratch& scratch,
                                    std::uint64_t fragment_bytes) {
  const std::uint64_t tensor_bytes = kScratchBytes / kFragmentsPerBlock;
  std::vector<layout::TensorPlace> tensors;
  std::vector<layout::FragmentPlace> fragments;
  for (std::uint32_t index = 0; index < kFragmentsPerBlock; ++index) {
    tensors.push_back({scratch.blocks() + index * tensor_bytes, tensor_bytes});
    fragments.push_back({index, 0, fragment_bytes, fragment_bytes});
  }
  const std::uint64_t block_bytes = kFragmentsPerBlock * fragment_bytes;
  return engine.attach(tensors, fragments, {&block_bytes, 1});
}

// The median time of one transfer.
Result<TimeNs> measure(TransferEngine& engine, Clock& clock, Scratch& scratch,
                       TransferRequest request, std::uint64_t block_bytes,
                       std::uint64_t num_blocks) {
  std::vector<std::int64_t> block_ids(num_blocks);
  std::vector<std::byte*> slots(num_blocks);
  for (std::uint64_t index = 0; index < num_blocks; ++index) {
    // Every other block from the end: neighbours in host memory lie apart in the device.
    block_ids[index] = static_cast<std::int64_t>(num_blocks - 1 - index);
    slots[index] = scratch.slots() + index * block_bytes;
  }
  request.block_ids = block_ids;
  request.slots = slots;
  std::array<TimeNs, kNumRepeats> times_ns{};
  for (TimeNs& time_ns : times_ns) {
    Result<TransferJobId> job_id = engine.submit(request);
    if (!job_id.is_ok()) return job_id.status();
    if (!wait_for_job(engine, clock, job_id.value())) {
      engine.cancel(job_id.value());
      if (!wait_for_job(engine, clock, job_id.value())) scratch.leave();
      (void)engine.take(job_id.value());
      return Status(StatusCode::kTimeout, "cannot measure methods: the device is busy");
    }
    Result<TransferResult> result = engine.take(job_id.value());
    if (!result.is_ok()) return result.status();
    if (!result.value().status.is_ok()) return result.value().status;
    time_ns = result.value().device_ns;
  }
  std::sort(times_ns.begin(), times_ns.end());
  return times_ns[kNumRepeats / 2];
}

// Latency and rate from a short and a long transfer.
Result<MethodCost> measure_cost(TransferEngine& engine, Clock& clock, Scratch& scratch,
                                const TransferRequest& request, std::uint64_t fragment_bytes) {
  const std::uint64_t block_bytes = kFragmentsPerBlock * fragment_bytes;
  const bool is_copying = request.method == TransferMethod::kCopyEngine;
  const std::uint64_t long_bytes =
      is_copying ? std::min(kScratchBytes, kCopiesMax * fragment_bytes) : kScratchBytes;
  const std::uint64_t num_short =
      std::max<std::uint64_t>(1, std::min(kShortBytes, long_bytes / 4) / block_bytes);
  const std::uint64_t num_long = std::max(long_bytes / block_bytes, num_short + 1);
  Result<TimeNs> short_ns = measure(engine, clock, scratch, request, block_bytes, num_short);
  if (!short_ns.is_ok()) return short_ns.status();
  Result<TimeNs> long_ns = measure(engine, clock, scratch, request, block_bytes, num_long);
  if (!long_ns.is_ok()) return long_ns.status();
  const double more_kib = static_cast<double>((num_long - num_short) * block_bytes) / 1024;
  MethodCost cost;
  cost.ns_per_kib =
      std::max(0.0, static_cast<double>(long_ns.value() - short_ns.value()) / more_kib);
  cost.latency_ns =
      std::max(0.0, static_cast<double>(short_ns.value()) -
                        cost.ns_per_kib * static_cast<double>(num_short * block_bytes) / 1024);
  return cost;
}

// Between two measured classes by their distance, in the logarithm of what is a rate.
void fill_between(MethodModel& model, TransferDirection direction, TransferMethod method) {
  const auto mix = [](double one, double other, double share) {
    return std::exp(std::log(std::max(one, 1e-3)) * (1 - share) +
                    std::log(std::max(other, 1e-3)) * share);
  };
  for (std::size_t index = 0; index < kNumFragmentClasses; ++index) {
    const auto next = std::lower_bound(kMeasuredClasses.begin(), kMeasuredClasses.end(), index);
    if (next != kMeasuredClasses.end() && *next == index) continue;
    const std::size_t above = next == kMeasuredClasses.end() ? kMeasuredClasses.back() : *next;
    const std::size_t below = next == kMeasuredClasses.begin() ? above : *std::prev(next);
    const double share =
        above == below ? 0
                       : static_cast<double>(index - below) / static_cast<double>(above - below);
    const MethodCost low = model.cost(direction, method, below);
    const MethodCost high = model.cost(direction, method, above);
    model.set_cost(
        direction, method, index,
        {mix(low.latency_ns, high.latency_ns, share), mix(low.ns_per_kib, high.ns_per_kib, share)});
  }
}

Result<MethodModel> measure_model(TransferEngine& engine, Device& device, Clock& clock) {
  Scratch scratch(device);
  Status allocated = scratch.allocate();
  if (!allocated.is_ok()) return allocated;
  Result<std::shared_ptr<const ReadyPoint>> ready = make_ready(device);
  if (!ready.is_ok()) return ready.status();
  const std::span<std::byte> slots(scratch.slots(), kScratchBytes);
  engine.add_page_locked_memory(slots);
  MethodModel model;
  const TimeNs deadline_ns = clock.now_ns() + kMeasureNsMax;
  Status failed;
  for (const std::size_t fragment_class : kMeasuredClasses) {
    const std::uint64_t fragment_bytes =
        std::min(fragment_bytes_of(fragment_class), kScratchBytes / kFragmentsPerBlock / 2);
    Result<AttachmentId> attached = attach_scratch(engine, scratch, fragment_bytes);
    if (!attached.is_ok()) {
      failed = attached.status();
      break;
    }
    TransferRequest request;
    request.attachment_id = attached.value();
    request.ready = ready.value();
    for (std::size_t index = 0; index < kNumDirections * kNumMethods && failed.is_ok(); ++index) {
      request.direction = static_cast<TransferDirection>(index / kNumMethods);
      request.method = static_cast<TransferMethod>(index % kNumMethods);
      Result<MethodCost> cost = measure_cost(engine, clock, scratch, request, fragment_bytes);
      if (cost.is_ok()) {
        model.set_cost(request.direction, request.method, fragment_class, cost.value());
      } else if (cost.status().code() != StatusCode::kUnsupported) {
        failed = cost.status();
      }
      if (clock.now_ns() > deadline_ns) {
        failed = Status(StatusCode::kTimeout, "cannot measure methods in time");
      }
    }
    (void)engine.detach(attached.value());
    if (!failed.is_ok()) break;
  }
  if (!scratch.is_in_use()) engine.remove_host_memory(slots);
  if (!failed.is_ok()) return failed;
  for (std::size_t index = 0; index < kNumDirections * kNumMethods; ++index) {
    fill_between(model, static_cast<TransferDirection>(index / kNumMethods),
                 static_cast<TransferMethod>(index % kNumMethods));
  }
  return model;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str() : std::string();
}

// Whole or not at all: another process may read it at this moment.
Status write_file(const std::string& path, const std::string& text) {
  const std::string partial = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file << text;
    if (file.flush()) {
      file.close();
      if (std::rename(partial.c_str(), path.c_str()) == 0) return Status::ok();
    }
  }
  const int os_errno = errno;
  std::remove(partial.c_str());
  return Status::from_errno(os_errno, "cannot keep calibration: path=" + path);
}

}  // namespace

Status calibrate_engine(TransferEngine& engine, Device& device, Clock& clock,
                        const TransferOptions& options) {
  const std::string identity = device.info().identity;
  if (!options.calibration_path.empty()) {
    const std::optional<MethodModel> kept =
        read_calibration(read_file(options.calibration_path), identity, options);
    if (kept) {
      engine.set_model(*kept);
      return Status::ok();
    }
  }
  Result<MethodModel> measured = measure_model(engine, device, clock);
  if (!measured.is_ok()) return measured.status();
  engine.set_model(measured.value());
  if (options.calibration_path.empty()) return Status::ok();
  return write_file(options.calibration_path,
                    write_calibration(measured.value(), identity, options));
}

}  // namespace kvtier::transfer
