// CudaTables: fragment tables in device memory, and the kernels' arguments made from them.
// Thread-safe. Calls that take a stream need the device's context to be current.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/block_copy.h"
#include "device/cuda_driver.h"
#include "device/cuda_kernel_arguments.h"
#include "device/fragment_table.h"

namespace kvtier {

class CudaTables {
 public:
  explicit CudaTables(const CudaDriver& driver) : driver_(driver) {}
  /// Gives all memory back to the driver.
  void destroy_all();

  /// kExhausted: beyond kTableBytesMax, or no device memory. Waits until the copy is there.
  Result<std::uint32_t> create(const FragmentTable& table, CudaStream upload_stream);
  /// The memory stays for the next table, since giving it back could wait for the whole device.
  void destroy(std::uint32_t table_id);
  /// Fills in everything; returns what all addresses and lengths are multiples of.
  /// kInvalidArgument: unknown table, or an op that is out of its range.
  Result<std::uint64_t> fill(const BlockCopy& op, cuda::KernelArguments& arguments) const;

  static constexpr std::uint64_t kTableBytesMax = 4u << 20;

 private:
  struct Entry {
    FragmentTable table;
    CudaAddress memory = 0;
    std::uint64_t memory_bytes = 0;
  };

  // With mutex_ held.
  Result<CudaAddress> take_memory(std::uint64_t memory_bytes);

  const CudaDriver& driver_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<const Entry>> entries_;
  std::multimap<std::uint64_t, CudaAddress> spare_;  // By size, a power of two.
  std::uint64_t allocated_bytes_ = 0;
  std::uint32_t last_table_id_ = 0;
};

}  // namespace kvtier
