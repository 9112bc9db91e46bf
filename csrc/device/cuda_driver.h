// CudaDriver: the calls of the CUDA driver, found at run time, so that one build runs with and
// without a GPU. Its types are declared here by their binary shape; no CUDA header is needed.
// Constant after loading, so thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace kvtier {

using CudaResult = int;
using CudaDeviceOrdinal = int;
using CudaAddress = unsigned long long;
using CudaContext = struct CudaContextHandle*;
using CudaStream = struct CudaStreamHandle*;
using CudaEvent = struct CudaEventHandle*;
using CudaModule = struct CudaModuleHandle*;
using CudaFunction = struct CudaFunctionHandle*;

struct CudaUuid {
  char bytes[16];
};

/// How the copies of a batch may read their sources. Unused locations stay zero.
struct CudaCopyAttributes {
  int source_access_order = 0;
  int source_location[2] = {};
  int target_location[2] = {};
  unsigned int flags = 0;
};
static_assert(sizeof(CudaCopyAttributes) == 24);

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaErrorInvalidValue = 1;
inline constexpr CudaResult kCudaErrorOutOfMemory = 2;
inline constexpr CudaResult kCudaErrorDeinitialized = 4;
inline constexpr CudaResult kCudaErrorAlreadyRegistered = 712;
inline constexpr CudaResult kCudaErrorNotReady = 600;
inline constexpr CudaResult kCudaErrorNotPermitted = 800;
inline constexpr CudaResult kCudaErrorNotSupported = 801;
/// CUDA 12.0: what every call below but the batches needs.
inline constexpr int kCudaDriverVersionMin = 12000;

struct CudaDriver {
  CudaResult (*init)(unsigned int flags);
  CudaResult (*driver_version)(int* version);
  CudaResult (*error_name)(CudaResult result, const char** name);
  CudaResult (*device_count)(int* num_devices);
  CudaResult (*device_get)(CudaDeviceOrdinal* device, int ordinal);
  CudaResult (*device_name)(char* name, int num_bytes, CudaDeviceOrdinal device);
  CudaResult (*device_uuid)(CudaUuid* uuid, CudaDeviceOrdinal device);
  CudaResult (*device_attribute)(int* value, int attribute, CudaDeviceOrdinal device);
  CudaResult (*context_retain)(CudaContext* context, CudaDeviceOrdinal device);
  CudaResult (*context_release)(CudaDeviceOrdinal device);
  CudaResult (*context_push)(CudaContext context);
  CudaResult (*context_pop)(CudaContext* context);
  CudaResult (*priority_range)(int* least, int* greatest);
  CudaResult (*capture_mode_exchange)(int* mode);
  CudaResult (*stream_create)(CudaStream* stream, unsigned int flags, int priority);
  CudaResult (*stream_destroy)(CudaStream stream);
  CudaResult (*stream_context)(CudaStream stream, CudaContext* context);
  CudaResult (*stream_is_capturing)(CudaStream stream, int* capture_status);
  CudaResult (*stream_query)(CudaStream stream);
  CudaResult (*stream_synchronize)(CudaStream stream);
  CudaResult (*stream_wait_event)(CudaStream stream, CudaEvent event, unsigned int flags);
  CudaResult (*event_create)(CudaEvent* event, unsigned int flags);
  CudaResult (*event_destroy)(CudaEvent event);
  CudaResult (*event_record)(CudaEvent event, CudaStream stream);
  CudaResult (*event_query)(CudaEvent event);
  CudaResult (*event_elapsed)(float* milliseconds, CudaEvent begin, CudaEvent end);
  CudaResult (*memory_allocate)(CudaAddress* address, std::size_t num_bytes);
  CudaResult (*memory_free)(CudaAddress address);
  CudaResult (*host_allocate)(void** memory, std::size_t num_bytes, unsigned int flags);
  CudaResult (*host_free)(void* memory);
  CudaResult (*host_register)(void* memory, std::size_t num_bytes, unsigned int flags);
  CudaResult (*host_unregister)(void* memory);
  CudaResult (*pointer_attribute)(void* value, int attribute, CudaAddress address);
  CudaResult (*copy)(CudaAddress target, CudaAddress source, std::size_t num_bytes,
                     CudaStream stream);
  CudaResult (*module_load)(CudaModule* module, const void* image);
  CudaResult (*module_unload)(CudaModule module);
  CudaResult (*module_function)(CudaFunction* function, CudaModule module, const char* name);
  CudaResult (*module_global)(CudaAddress* address, std::size_t* num_bytes, CudaModule module,
                              const char* name);
  CudaResult (*launch)(CudaFunction function, unsigned int grid_x, unsigned int grid_y,
                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                       unsigned int block_z, unsigned int shared_bytes, CudaStream stream,
                       void** parameters, void** extra);
  // Null where the driver has them not: since CUDA 13.0, and with `fail_index` since 12.8.
  CudaResult (*copy_batch)(CudaAddress* targets, CudaAddress* sources, std::size_t* lengths,
                           std::size_t num_copies, CudaCopyAttributes* attributes,
                           std::size_t* attribute_indices, std::size_t num_attributes,
                           CudaStream stream);
  CudaResult (*copy_batch_indexed)(CudaAddress* targets, CudaAddress* sources, std::size_t* lengths,
                                   std::size_t num_copies, CudaCopyAttributes* attributes,
                                   std::size_t* attribute_indices, std::size_t num_attributes,
                                   std::size_t* fail_index, CudaStream stream);
  // Not the driver's: whether memory can be read there. It follows a handle without asking.
  bool (*is_readable)(const void* address);
};

/// Opens the driver and starts it. kUnsupported: there is none, it lacks calls or is older than
/// kCudaDriverVersionMin, or it finds no device; the message says which.
Result<const CudaDriver*> load_cuda_driver(const char* library_name = "libcuda.so.1");
/// The second half of load_cuda_driver(): starts `driver` and asks its version and devices.
Status start_cuda_driver(const CudaDriver& driver);

/// Whether the context is of no more use after a call answered so.
bool is_cuda_context_lost(CudaResult result);
/// "cannot <action>: CUDA_ERROR_... (result=1)": kExhausted when memory ran out, kUnsupported, or
/// kIoError.
Status cuda_status(const CudaDriver& driver, CudaResult result, const std::string& action);

}  // namespace kvtier
