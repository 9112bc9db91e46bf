// The public surface of the transfer engine. Thread-safe.
#include "transfer/transfer_engine.h"

#include <string>
#include <utility>

#include "transfer/calibration.h"
#include "transfer/transfer_engine_impl.h"

namespace kvtier::transfer {
namespace {

constexpr std::uint64_t kChunkBytesMin = 64u << 10;
constexpr std::uint64_t kChunkBytesMax = 16u << 20;
constexpr std::uint32_t kCtasMin = 2;
constexpr std::uint32_t kCtasMax = 64;

Status out_of_range(const char* name, std::uint64_t value, std::uint64_t min, std::uint64_t max) {
  return Status(StatusCode::kConfig, std::string("cannot use ") + name + "=" +
                                         std::to_string(value) + ": allowed are " +
                                         std::to_string(min) + " to " + std::to_string(max));
}

Status check_options(const TransferOptions& options) {
  if (options.max_ctas < kCtasMin || options.max_ctas > kCtasMax) {
    return out_of_range("max_ctas", options.max_ctas, kCtasMin, kCtasMax);
  }
  if (options.chunk_bytes < kChunkBytesMin || options.chunk_bytes > kChunkBytesMax ||
      options.chunk_bytes % kLeafBytes != 0) {
    return out_of_range("chunk_bytes (whole leaves of 4096)", options.chunk_bytes, kChunkBytesMin,
                        kChunkBytesMax);
  }
  if (options.num_jobs_max == 0) return out_of_range("num_jobs_max", 0, 1, UINT32_MAX);
  return Status::ok();
}

}  // namespace

const char* method_name(TransferMethod method) {
  switch (method) {
    case TransferMethod::kCopyEngine:
      return "copy_engine";
    case TransferMethod::kStaged:
      return "staged";
    case TransferMethod::kZeroCopy:
      return "zero_copy";
    case TransferMethod::kAuto:
      break;
  }
  return "auto";
}

TransferEngine::TransferEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
// In a forked child the thread is not there, and mutexes may be held by one that is not; a thread
// that a call of the driver holds comes back to what it left. Both keep the insides.
TransferEngine::~TransferEngine() {
  if (!impl_->is_this_process() || !impl_->stop()) (void)impl_.release();
}

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(Device& device, Clock& clock,
                                                               const TransferOptions& options) {
  Status good = check_options(options);
  if (!good.is_ok()) return good;
  std::unique_ptr<TransferEngine> engine(
      new TransferEngine(std::make_unique<Impl>(device, clock, options)));
  Status started = engine->impl_->start();
  if (!started.is_ok()) return started;
  const DeviceInfo info = device.info();
  // Where only one method makes sense there is nothing to choose.
  const bool has_choice = info.has_kernels && !info.is_memory_unified;
  if (options.is_calibrated && has_choice) {
    const Status calibrated = calibrate_engine(*engine, device, clock, options);
    if (!calibrated.is_ok()) engine->impl_->add_note(calibrated.message());
    Status failed = device.failure();
    if (!failed.is_ok()) return failed;
  }
  return engine;
}

Status TransferEngine::add_host_memory(std::span<std::byte> memory) {
  if (!impl_->is_this_process()) {
    return Status(StatusCode::kClosed, "cannot page-lock memory for the device of another process");
  }
  return impl_->ranges().lock(memory);
}

Status TransferEngine::begin_host_memory(std::span<std::byte> memory) {
  if (!impl_->is_this_process()) {
    return Status(StatusCode::kClosed, "cannot page-lock memory for the device of another process");
  }
  return impl_->begin_host_memory(memory);
}

HostMemoryInfo TransferEngine::host_memory_info(std::span<std::byte> memory) const {
  return impl_->is_this_process() ? impl_->locker().info(memory) : HostMemoryInfo{};
}

void TransferEngine::add_page_locked_memory(std::span<std::byte> memory) {
  if (impl_->is_this_process()) impl_->ranges().add(memory);
}

void TransferEngine::remove_host_memory(std::span<std::byte> memory) {
  if (!impl_->is_this_process()) return;
  if (!impl_->locker().drop(memory)) impl_->ranges().remove(memory);
}

Result<AttachmentId> TransferEngine::attach(std::span<const layout::TensorPlace> tensors,
                                            std::span<const layout::FragmentPlace> fragments,
                                            std::span<const std::uint64_t> part_bytes) {
  return impl_->attach(tensors, fragments, part_bytes);
}

Status TransferEngine::detach(AttachmentId attachment_id) { return impl_->detach(attachment_id); }

Result<std::shared_ptr<const ReadyPoint>> TransferEngine::record_ready(StreamId stream) {
  return impl_->record_ready(stream);
}

Result<TransferJobId> TransferEngine::submit(const TransferRequest& request) {
  return impl_->submit(request);
}

void TransferEngine::cancel(TransferJobId job_id) { impl_->cancel(job_id); }

bool TransferEngine::wait(TransferJobId job_id, TimeNs deadline_ns) {
  return impl_->wait(job_id, deadline_ns);
}

Status TransferEngine::order_stream_after(TransferJobId job_id, StreamId stream,
                                          TimeNs deadline_ns) {
  return impl_->order_stream_after(job_id, stream, deadline_ns);
}

void TransferEngine::poll(std::vector<TransferResult>& results) { impl_->poll(results); }

Result<TransferResult> TransferEngine::take(TransferJobId job_id) { return impl_->take(job_id); }

bool TransferEngine::close(TimeNs deadline_ns) { return impl_->close(deadline_ns); }

bool TransferEngine::has_stopped() const { return impl_->has_stopped(); }

TimeNs TransferEngine::advance() { return impl_->advance(); }

TransferStats TransferEngine::stats() const { return impl_->stats(); }

DeviceInfo TransferEngine::device_info() const { return impl_->device_info(); }

std::string TransferEngine::note() const { return impl_->note(); }

MethodModel TransferEngine::model() const { return impl_->model(); }

void TransferEngine::set_model(const MethodModel& model) { impl_->set_model(model); }

}  // namespace kvtier::transfer
