// The kernels' source as C++, with what it takes for granted of a GPU. For one caller at a time.
#include "device/kernels_on_host.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <map>
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
HostDimensions threadIdx;
HostDimensions blockIdx;
HostDimensions gridDim;

/// One warp whose lanes run one after the other, all of them again and again: each time one more
/// exchange between them is known. What comes behind the first unknown one is done with a wrong
/// value and done again; that is harmless because a kernel never reads what it writes.
struct HostWarp {
  using Values = std::array<unsigned long long, kLanesPerWarp>;

  std::vector<Values> exchanges;  // Those that are known, in order.
  Values given{};                 // To the next one.
  std::size_t num_asked = 0;      // Exchanges that the lane has come to.
};
HostWarp* host_warp = nullptr;

inline unsigned long long exchange_in_warp(unsigned long long value, unsigned source_lane) {
  const std::size_t index = host_warp->num_asked++;
  const std::size_t num_known = host_warp->exchanges.size();
  if (index < num_known) return host_warp->exchanges[index][source_lane];
  if (index == num_known) host_warp->given[threadIdx.x % kLanesPerWarp] = value;
  return 0;
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
namespace {

void run_warp(HostKernel kernel, const cuda::KernelArguments& arguments, unsigned first_thread) {
  cuda::HostWarp warp;
  cuda::host_warp = &warp;
  while (true) {
    std::size_t num_asked = 0;
    for (unsigned lane = 0; lane < cuda::kLanesPerWarp; ++lane) {
      cuda::threadIdx.x = first_thread + lane;
      warp.num_asked = 0;
      kernel(arguments);
      // Lanes that part ways would wait for each other for ever on a GPU.
      if (lane > 0 && warp.num_asked != num_asked) std::abort();
      num_asked = warp.num_asked;
    }
    if (num_asked == warp.exchanges.size()) return;
    warp.exchanges.push_back(warp.given);
  }
}

}  // namespace

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
    cuda::blockIdx.x = warp_index / kWarps;
    run_warp(kernel, arguments, warp_index % kWarps * cuda::kLanesPerWarp);
  }
}

}  // namespace kvtier::testing
