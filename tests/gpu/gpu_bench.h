// GpuBench: a real GPU with what tests and probes need beside a Device: memory that is given back,
// streams of an engine, and kernels that end when told to. For one thread.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_context.h"
#include "device/cuda_device.h"
#include "device/cuda_driver.h"
#include "late_kernel_image.h"

namespace kvtier::testing {

class GpuBench {
 public:
  /// Null: this machine has no GPU that can be used; `reason` says why.
  static std::unique_ptr<GpuBench> open(std::string& reason) {
    // Else streams share few hardware queues, and one that waits holds up another's work.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    auto driver = load_cuda_driver();
    if (!driver.is_ok()) {
      reason = driver.status().message();
      return nullptr;
    }
    auto device = open_cuda_device(0);
    if (!device.is_ok()) {
      reason = device.status().message();
      return nullptr;
    }
    return std::unique_ptr<GpuBench>(new GpuBench(*driver.value(), std::move(device).value()));
  }

  ~GpuBench() {
    end_late_work();
    {
      const CudaContextScope scope(driver_, context_);
      for (const CudaStream stream : streams_) {
        must(driver_.stream_synchronize(stream), "synchronize");
        must(driver_.stream_destroy(stream), "destroy stream");
      }
      must(driver_.module_unload(module_), "unload");
    }
    for (std::byte* memory : memory_) device_->deallocate(memory);
    for (std::byte* memory : page_locked_) device_->deallocate_page_locked(memory);
    device_.reset();
    must(driver_.context_release(0), "release context");
  }

  Device& device() { return *device_; }
  const CudaDriver& driver() const { return driver_; }
  CudaContext context() const { return context_; }

  /// Device memory, zeroed.
  std::span<std::byte> make_memory(std::size_t length_bytes) {
    auto memory = device_->allocate(length_bytes);
    if (!memory.is_ok()) die(memory.status().message().c_str());
    memory_.push_back(memory.value());
    const std::span<std::byte> made(memory.value(), length_bytes);
    write(made, std::vector<std::byte>(length_bytes));
    return made;
  }
  std::span<std::byte> make_page_locked(std::size_t length_bytes) {
    auto memory = device_->allocate_page_locked(length_bytes);
    if (!memory.is_ok()) die(memory.status().message().c_str());
    page_locked_.push_back(memory.value());
    std::fill_n(memory.value(), length_bytes, std::byte{0});
    return {memory.value(), length_bytes};
  }
  void write(std::span<std::byte> memory, std::span<const std::byte> bytes) {
    copy(memory.data(), bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(std::span<const std::byte> memory) {
    std::vector<std::byte> bytes(memory.size());
    copy(bytes.data(), memory.data(), memory.size());
    return bytes;
  }

  /// A stream that does not wait for the legacy default one; the oldest comes again after six.
  StreamId make_stream() {
    constexpr std::size_t kStreams = 7;  // One of them is this object's own.
    if (streams_.size() == kStreams) {
      next_stream_ = next_stream_ % (kStreams - 1) + 1;
      return {reinterpret_cast<std::uint64_t>(streams_[next_stream_])};
    }
    const CudaContextScope scope(driver_, context_);
    CudaStream stream = nullptr;
    must(driver_.stream_create(&stream, 1, 0), "create stream");
    streams_.push_back(stream);
    return {reinterpret_cast<std::uint64_t>(stream)};
  }

  /// Copies on the stream, but not before end_late_work().
  void copy_late(StreamId stream, std::byte* target, const std::byte* source,
                 std::size_t length_bytes) {
    unsigned long long num_bytes = length_bytes;
    void* parameters[] = {&flag_, &target, &source, &num_bytes};
    *flag_ = 0;
    launch(late_copy_, 1, 256, stream, parameters);
  }
  void write_late(StreamId stream, std::span<std::byte> memory, std::vector<std::byte> bytes) {
    const auto source = make_memory(bytes.size());
    write(source, bytes);
    copy_late(stream, memory.data(), source.data(), bytes.size());
  }
  void end_late_work() { *flag_ = 1; }

  /// A kernel that reads and writes `length_bytes`.
  void move_memory(StreamId stream, std::byte* target, const std::byte* source,
                   std::size_t length_bytes) {
    unsigned long long num_words = length_bytes / 16;
    void* parameters[] = {&target, &source, &num_words};
    launch(memory_bound_, 1056, 256, stream, parameters);
  }
  void synchronize(StreamId stream) {
    const CudaContextScope scope(driver_, context_);
    must(driver_.stream_synchronize(reinterpret_cast<CudaStream>(stream.stream_id)), "synchronize");
  }

  /// Lets `duration_ns` pass, for what should not happen meanwhile.
  void let_pass(TimeNs duration_ns) {
    SystemClock clock;
    const TimeNs end_ns = clock.now_ns() + duration_ns;
    while (clock.now_ns() < end_ns) {
    }
  }

 private:
  GpuBench(const CudaDriver& driver, std::unique_ptr<Device> device)
      : driver_(driver), device_(std::move(device)) {
    must(driver_.context_retain(&context_, 0), "use device");
    {
      const CudaContextScope scope(driver_, context_);
      must(driver_.module_load(&module_, late_kernel_image().data()), "load the tests' kernels");
      must(driver_.module_function(&late_copy_, module_, "kvtier_late_copy"), "find kernel");
      must(driver_.module_function(&memory_bound_, module_, "kvtier_memory_bound"), "find kernel");
    }
    own_stream_ = make_stream();
    flag_ = reinterpret_cast<volatile unsigned*>(make_page_locked(64).data());
  }

  void copy(std::byte* target, const std::byte* source, std::size_t length_bytes) {
    const CudaContextScope scope(driver_, context_);
    const auto stream = reinterpret_cast<CudaStream>(own_stream_.stream_id);
    must(driver_.copy(reinterpret_cast<CudaAddress>(target), reinterpret_cast<CudaAddress>(source),
                      length_bytes, stream),
         "copy");
    must(driver_.stream_synchronize(stream), "synchronize");
  }
  void launch(CudaFunction function, unsigned grid, unsigned block, StreamId stream,
              void** parameters) {
    const CudaContextScope scope(driver_, context_);
    must(driver_.launch(function, grid, 1, 1, block, 1, 1, 0,
                        reinterpret_cast<CudaStream>(stream.stream_id), parameters, nullptr),
         "launch");
  }
  void must(CudaResult result, const char* action) const {
    if (result != kCudaSuccess) die(cuda_status(driver_, result, action).message().c_str());
  }
  [[noreturn]] static void die(const char* reason) {
    std::fprintf(stderr, "GPU test cannot go on: %s\n", reason);
    std::abort();
  }

  const CudaDriver& driver_;
  std::unique_ptr<Device> device_;
  CudaContext context_ = nullptr;
  CudaModule module_ = nullptr;
  CudaFunction late_copy_ = nullptr;
  CudaFunction memory_bound_ = nullptr;
  StreamId own_stream_;
  volatile unsigned* flag_ = nullptr;
  std::vector<CudaStream> streams_;
  std::size_t next_stream_ = 0;
  std::vector<std::byte*> memory_;
  std::vector<std::byte*> page_locked_;
};

/// The bench of this test program, made once; null where there is no GPU.
inline GpuBench* shared_gpu_bench(std::string& reason) {
  static std::string why;
  // Never destroyed: at exit the driver may be gone first.
  static GpuBench* const bench = GpuBench::open(why).release();
  reason = why;
  return bench;
}

}  // namespace kvtier::testing

/// Leaves the test case, with the reason, where there is no GPU.
#define KVTIER_GPU_OR_SKIP(bench)                                                                \
  std::string no_gpu_reason;                                                                     \
  ::kvtier::testing::GpuBench* const bench = ::kvtier::testing::shared_gpu_bench(no_gpu_reason); \
  if (bench == nullptr) {                                                                        \
    MESSAGE("skipped: ", no_gpu_reason);                                                         \
    return;                                                                                      \
  }
