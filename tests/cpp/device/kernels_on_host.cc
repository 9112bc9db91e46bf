// The kernels' source as C++, with what it takes for granted of a GPU. For one caller at a time.
#include "device/kernels_on_host.h"

#include <barrier>
#include <map>
#include <thread>
#include <vector>

// ---- What a kernel takes for granted ----

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__

namespace kvtier::cuda {
namespace {

struct HostDimensions {
  unsigned x = 0;
};
thread_local HostDimensions threadIdx;
thread_local HostDimensions blockIdx;
HostDimensions gridDim;

/// The exchange of one warp: everybody leaves a value, then takes somebody's.
struct HostWarp {
  std::barrier<> arrival{kLanesPerWarp};
  unsigned long long values[kLanesPerWarp] = {};
};
thread_local HostWarp* host_warp = nullptr;

inline unsigned long long exchange_in_warp(unsigned long long value, unsigned source_lane) {
  host_warp->values[threadIdx.x % kLanesPerWarp] = value;
  host_warp->arrival.arrive_and_wait();
  const unsigned long long taken = host_warp->values[source_lane];
  host_warp->arrival.arrive_and_wait();
  return taken;
}

inline unsigned long long __shfl_xor_sync(unsigned, unsigned long long value, unsigned mask) {
  return exchange_in_warp(value, (threadIdx.x % kLanesPerWarp) ^ mask);
}
inline unsigned long long __shfl_sync(unsigned, unsigned long long value, int lane) {
  return exchange_in_warp(value, static_cast<unsigned>(lane));
}

struct ulonglong2 {
  unsigned long long x;
  unsigned long long y;
};
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
inline ulonglong2 __ldcs(const ulonglong2* place) { return *place; }
inline unsigned long long __umul64hi(unsigned long long one, unsigned long long other) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(one) * other) >> 64);
}
inline unsigned min(unsigned one, unsigned other) { return one < other ? one : other; }

}  // namespace
}  // namespace kvtier::cuda

#include "device/cuda_block_copy.cu"

namespace kvtier::testing {

HostKernel find_host_kernel(const std::string& name) {
  static const std::map<std::string, HostKernel> kKernels = {
      {"kvtier_gather_16", cuda::kvtier_gather_16}, {"kvtier_gather_4", cuda::kvtier_gather_4},
      {"kvtier_gather_1", cuda::kvtier_gather_1},   {"kvtier_scatter_16", cuda::kvtier_scatter_16},
      {"kvtier_scatter_4", cuda::kvtier_scatter_4}, {"kvtier_scatter_1", cuda::kvtier_scatter_1},
      {"kvtier_hash_16", cuda::kvtier_hash_16},     {"kvtier_hash_4", cuda::kvtier_hash_4},
      {"kvtier_hash_1", cuda::kvtier_hash_1},
  };
  const auto found = kKernels.find(name);
  return found == kKernels.end() ? nullptr : found->second;
}

cuda::LeafHashWords& host_leaf_hash_words() { return cuda::kvtier_leaf_hash_words; }

void run_host_kernel(HostKernel kernel, unsigned num_ctas, const cuda::KernelArguments& arguments) {
  cuda::gridDim.x = num_ctas;
  constexpr unsigned kWarps = cuda::kThreadsPerCta / cuda::kLanesPerWarp;
  // Warps beyond the last turn have nothing to do.
  const unsigned num_turns =
      (arguments.num_leaves + arguments.leaves_per_turn - 1) / arguments.leaves_per_turn;
  for (unsigned warp_index = 0; warp_index < num_ctas * kWarps; ++warp_index) {
    if (warp_index >= num_turns) break;
    cuda::HostWarp warp;
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < cuda::kLanesPerWarp; ++lane) {
      lanes.emplace_back([&, lane] {
        cuda::host_warp = &warp;
        cuda::threadIdx.x = warp_index % kWarps * cuda::kLanesPerWarp + lane;
        cuda::blockIdx.x = warp_index / kWarps;
        kernel(arguments);
      });
    }
    for (std::thread& lane : lanes) lane.join();
  }
}

}  // namespace kvtier::testing
