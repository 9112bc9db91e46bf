// CudaDevice: one GPU through the driver that is found at run time. Uses the primary context, the
// one that torch and others use, so their addresses and streams are good here. Thread-safe.
#pragma once

#include <memory>
#include <span>

#include "device/cuda_driver.h"
#include "device/device.h"

namespace kvtier {

/// Opens the GPU of that number. kUnsupported: no driver, one that is too old, or no such device.
Result<std::unique_ptr<Device>> open_cuda_device(int ordinal);

/// As above, with a driver and kernels of the caller's choice, which outlive the device.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDriver& driver, int ordinal,
                                                 std::span<const unsigned char> image);

}  // namespace kvtier
