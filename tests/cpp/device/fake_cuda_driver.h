// A CUDA driver of the tests' own: device memory is the host's, streams do everything at once, and
// the kernels run on the host. Counts, refuses and fails as told. One at a time, for one thread.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "device/cuda_driver.h"
#include "device/kernels_on_host.h"

namespace kvtier::testing {

class FakeCudaDriver {
 public:
  FakeCudaDriver() {
    state() = {};
    fill(driver_);
  }
  ~FakeCudaDriver() {
    for (const auto& [memory, allocation] : state().memory) std::free(memory);
    state().memory.clear();
  }
  FakeCudaDriver(const FakeCudaDriver&) = delete;
  FakeCudaDriver& operator=(const FakeCudaDriver&) = delete;

  CudaDriver& driver() { return driver_; }

  struct Allocation {
    std::size_t num_bytes = 0;
    bool is_device = false;
    unsigned long long buffer_id = 0;
  };
  struct State {
    int version = 13000;
    int num_devices = 1;
    int capture_status = 0;
    CudaResult init_result = kCudaSuccess;
    CudaResult module_result = kCudaSuccess;
    CudaResult batch_result = kCudaSuccess;
    CudaResult launch_result = kCudaSuccess;
    CudaResult query_result = kCudaSuccess;
    CudaResult push_result = kCudaSuccess;
    CudaResult pointer_result = kCudaSuccess;  // Of what is asked about any address.
    bool is_busy = false;                      // Events and streams never get ready.
    int num_capture_asks_until = 0;            // So many more answers before a capture begins.
    /// Device attributes: unified addresses, mapped host memory, one address for registered memory.
    std::set<int> attributes = {19, 41, 91};
    std::map<void*, Allocation> memory;
    unsigned long long last_buffer_id = 0;
    std::size_t num_batches = 0;
    std::size_t num_copies = 0;
    std::size_t num_launches = 0;
    std::size_t num_streams = 0;
    std::size_t num_events = 0;
    int num_contexts = 0;
    int context_depth = 0;
    CudaStream foreign_stream = nullptr;
  };
  static State& state() {
    static State state;
    return state;
  }

 private:
  template <typename Handle>
  static Handle handle(std::uintptr_t value) {
    return reinterpret_cast<Handle>(value);
  }

  static CudaResult allocate(void** memory, std::size_t num_bytes, bool is_device) {
    if (num_bytes > (1ull << 40)) return kCudaErrorOutOfMemory;
    *memory = std::aligned_alloc(4096, (num_bytes + 4095) / 4096 * 4096);
    state().memory[*memory] = {num_bytes, is_device, ++state().last_buffer_id};
    return kCudaSuccess;
  }
  static CudaResult release(void* memory) {
    if (state().memory.erase(memory) != 1) return 1;
    std::free(memory);
    return kCudaSuccess;
  }
  static const Allocation* find(CudaAddress address) {
    for (const auto& [memory, allocation] : state().memory) {
      const auto begin = reinterpret_cast<CudaAddress>(memory);
      if (address >= begin && address - begin < allocation.num_bytes) return &allocation;
    }
    return nullptr;
  }
  static CudaAddress begin_of(const Allocation& wanted) {
    for (const auto& [memory, allocation] : state().memory) {
      if (&allocation == &wanted) return reinterpret_cast<CudaAddress>(memory);
    }
    return 0;
  }
  static CudaResult pointer_attribute(void* value, int attribute, CudaAddress address) {
    if (state().pointer_result != kCudaSuccess) return state().pointer_result;
    const Allocation* found = find(address);
    if (found == nullptr) return 1;
    if (attribute == 11) *static_cast<CudaAddress*>(value) = begin_of(*found);
    if (attribute == 12) *static_cast<std::size_t*>(value) = found->num_bytes;
    if (attribute == 2) *static_cast<unsigned*>(value) = found->is_device ? 2 : 1;
    if (attribute == 7) *static_cast<unsigned long long*>(value) = found->buffer_id;
    if (attribute == 9) *static_cast<int*>(value) = 0;
    return kCudaSuccess;
  }
  static CudaResult copy(CudaAddress target, CudaAddress source, std::size_t num_bytes,
                         CudaStream) {
    ++state().num_copies;
    std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), num_bytes);
    return kCudaSuccess;
  }
  static CudaResult copy_batch(CudaAddress* targets, CudaAddress* sources, std::size_t* lengths,
                               std::size_t num_copies, CudaCopyAttributes* attributes,
                               std::size_t* indices, std::size_t num_attributes, CudaStream) {
    if (state().batch_result != kCudaSuccess) return state().batch_result;
    if (attributes->source_access_order != 1 || num_attributes != 1 || indices[0] != 0) return 1;
    ++state().num_batches;
    for (std::size_t index = 0; index < num_copies; ++index) {
      std::memcpy(reinterpret_cast<void*>(targets[index]),
                  reinterpret_cast<const void*>(sources[index]), lengths[index]);
    }
    return kCudaSuccess;
  }
  static CudaResult module_function(CudaFunction* function, CudaModule, const char* name) {
    const HostKernel found = find_host_kernel(name);
    if (found == nullptr) return 500;
    *function = reinterpret_cast<CudaFunction>(found);
    return kCudaSuccess;
  }
  static CudaResult module_global(CudaAddress* address, std::size_t* num_bytes, CudaModule,
                                  const char*) {
    *address = reinterpret_cast<CudaAddress>(&host_leaf_hash_words());
    *num_bytes = sizeof(cuda::LeafHashWords);
    return kCudaSuccess;
  }
  static CudaResult launch(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned, unsigned, unsigned, CudaStream,
                           void** parameters, void**) {
    if (state().launch_result != kCudaSuccess) return state().launch_result;
    if (grid_y != 1 || grid_z != 1 || block_x != cuda::kThreadsPerCta) return 1;
    ++state().num_launches;
    run_host_kernel(reinterpret_cast<HostKernel>(function), grid_x,
                    *static_cast<const cuda::KernelArguments*>(parameters[0]));
    return kCudaSuccess;
  }
  static CudaResult query() {
    if (state().query_result != kCudaSuccess) return state().query_result;
    return state().is_busy ? kCudaErrorNotReady : kCudaSuccess;
  }

  static void fill(CudaDriver& driver) {
    driver = {};
    fill_devices(driver);
    fill_streams(driver);
    fill_memory(driver);
    driver.module_load = [](CudaModule* module, const void*) {
      *module = handle<CudaModule>(0x3000);
      return state().module_result;
    };
    driver.module_unload = [](CudaModule) { return kCudaSuccess; };
    driver.module_function = module_function;
    driver.module_global = module_global;
    driver.launch = launch;
  }
  static void fill_devices(CudaDriver& driver) {
    driver.init = [](unsigned) { return state().init_result; };
    driver.driver_version = [](int* version) {
      *version = state().version;
      return kCudaSuccess;
    };
    driver.error_name = [](CudaResult, const char** name) {
      *name = "CUDA_ERROR_OF_A_TEST";
      return kCudaSuccess;
    };
    driver.device_count = [](int* num_devices) {
      *num_devices = state().num_devices;
      return kCudaSuccess;
    };
    driver.device_get = [](CudaDeviceOrdinal* device, int ordinal) {
      *device = ordinal;
      return ordinal < state().num_devices ? kCudaSuccess : 101;
    };
    driver.device_name = [](char* name, int, CudaDeviceOrdinal) {
      std::strcpy(name, "Fake GPU");
      return kCudaSuccess;
    };
    driver.device_uuid = [](CudaUuid*, CudaDeviceOrdinal) { return kCudaSuccess; };
    driver.device_attribute = [](int* value, int attribute, CudaDeviceOrdinal) {
      *value = state().attributes.contains(attribute) ? 1 : 0;
      return kCudaSuccess;
    };
    driver.context_retain = [](CudaContext* context, CudaDeviceOrdinal) {
      *context = handle<CudaContext>(0x100);
      ++state().num_contexts;
      return kCudaSuccess;
    };
    driver.context_release = [](CudaDeviceOrdinal) {
      --state().num_contexts;
      return kCudaSuccess;
    };
    driver.context_push = [](CudaContext) {
      if (state().push_result != kCudaSuccess) return state().push_result;
      ++state().context_depth;
      return kCudaSuccess;
    };
    driver.context_pop = [](CudaContext*) {
      --state().context_depth;
      return kCudaSuccess;
    };
  }
  static void fill_streams(CudaDriver& driver) {
    driver.priority_range = [](int* least, int* greatest) {
      *least = 0;
      *greatest = -5;
      return kCudaSuccess;
    };
    driver.capture_mode_exchange = [](int*) { return kCudaSuccess; };
    driver.stream_create = [](CudaStream* stream, unsigned, int) {
      *stream = handle<CudaStream>(0x1000 + ++state().num_streams);
      return kCudaSuccess;
    };
    driver.stream_destroy = [](CudaStream) { return kCudaSuccess; };
    driver.stream_context = [](CudaStream stream, CudaContext* context) {
      *context = handle<CudaContext>(stream == state().foreign_stream ? 0x200 : 0x100);
      return kCudaSuccess;
    };
    driver.is_readable = [](const void* address) {
      return reinterpret_cast<std::uintptr_t>(address) != 12345;
    };
    driver.stream_is_capturing = [](CudaStream, int* status) {
      *status = state().capture_status;
      if (state().num_capture_asks_until > 0 && --state().num_capture_asks_until == 0) {
        state().capture_status = 1;
      }
      return kCudaSuccess;
    };
    driver.stream_query = [](CudaStream) { return query(); };
    driver.stream_synchronize = [](CudaStream) { return kCudaSuccess; };
    driver.stream_wait_event = [](CudaStream, CudaEvent, unsigned) { return kCudaSuccess; };
    driver.event_create = [](CudaEvent* event, unsigned) {
      *event = handle<CudaEvent>(0x2000 + ++state().num_events);
      return kCudaSuccess;
    };
    driver.event_destroy = [](CudaEvent) { return kCudaSuccess; };
    driver.event_record = [](CudaEvent, CudaStream) { return kCudaSuccess; };
    driver.event_query = [](CudaEvent) { return query(); };
    driver.event_elapsed = [](float* milliseconds, CudaEvent, CudaEvent) {
      *milliseconds = 0.5f;
      return kCudaSuccess;
    };
  }
  static void fill_memory(CudaDriver& driver) {
    driver.memory_allocate = [](CudaAddress* address, std::size_t num_bytes) {
      void* memory = nullptr;
      const CudaResult result = allocate(&memory, num_bytes, true);
      *address = reinterpret_cast<CudaAddress>(memory);
      return result;
    };
    driver.memory_free = [](CudaAddress address) {
      return release(reinterpret_cast<void*>(address));
    };
    driver.host_allocate = [](void** memory, std::size_t num_bytes, unsigned) {
      return allocate(memory, num_bytes, false);
    };
    driver.host_free = [](void* memory) { return release(memory); };
    driver.host_register = [](void*, std::size_t, unsigned) { return kCudaSuccess; };
    driver.host_unregister = [](void*) { return kCudaSuccess; };
    driver.pointer_attribute = pointer_attribute;
    driver.copy = copy;
    driver.copy_batch = copy_batch;
  }

  CudaDriver driver_;
};

}  // namespace kvtier::testing
