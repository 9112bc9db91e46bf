// Kernels that move the leaves of blocks between their fragments and contiguous memory (of the
// device, or page-locked on the host) and hash them on the way. Built into an embedded image.
//
// One warp takes a leaf at a time: eight 16-byte units a thread, which are all loaded before the
// first is used, so that a warp keeps 4 KiB under way. Within a KiB the hash only adds up, so the
// threads add what they hold; three exchanges then leave each of them one of the leaf's 32 sums.
#include "device/cuda_kernel_arguments.h"

// Other compilers, which run this code in tests, know no such pragma.
#ifdef __CUDACC__
#define KVTIER_UNROLL _Pragma("unroll")
#define KVTIER_UNROLL_TWICE _Pragma("unroll 2")
#else
#define KVTIER_UNROLL
#define KVTIER_UNROLL_TWICE
#endif

namespace kvtier::cuda {
namespace {

constexpr unsigned kUnitBytes = 16;
constexpr unsigned kUnitsPerThread = kLeafBytes / kUnitBytes / kLanesPerWarp;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kKibPerLeaf = 4;

enum class Kind { kGather, kScatter, kHash };

struct Unit {
  unsigned long long low;
  unsigned long long high;
};

}  // namespace

extern "C" {
__constant__ LeafHashWords kvtier_leaf_hash_words;
}

namespace {

// ---- Places ----

/// The part of the arguments that finds a fragment, small enough to be handed to a function.
struct FragmentList {
  const KernelFragment* fragments;
  unsigned num_fragments;
  unsigned equal_fragment_bytes;
};

/// The last item that begins at or before `place`. Requires: the first one does; ascending order.
template <auto kBegin, typename Item>
__device__ __forceinline__ const Item& last_not_after(const Item* items, unsigned num_items,
                                                      unsigned place) {
  unsigned first = 0;
  unsigned last = num_items - 1;
  while (first < last) {
    const unsigned middle = (first + last + 1) / 2;
    if (items[middle].*kBegin <= place) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return items[first];
}

__device__ __forceinline__ const KernelFragment& fragment_at(const FragmentList& list,
                                                             unsigned offset_bytes) {
  if (list.equal_fragment_bytes != 0) {
    return list.fragments[offset_bytes / list.equal_fragment_bytes];
  }
  return last_not_after<&KernelFragment::offset_bytes>(list.fragments, list.num_fragments,
                                                       offset_bytes);
}

__device__ __forceinline__ const KernelPart& part_of(const KernelArguments& arguments,
                                                     unsigned leaf_index) {
  return last_not_after<&KernelPart::first_leaf>(arguments.parts, arguments.num_parts, leaf_index);
}

__device__ __forceinline__ char* address_in(const KernelFragment& fragment, long long block_id,
                                            unsigned offset_bytes) {
  return reinterpret_cast<char*>(fragment.base) +
         static_cast<unsigned long long>(block_id) * fragment.stride_bytes +
         (offset_bytes - fragment.offset_bytes);
}

// A call of its own: inlined for every piece of every unit it would be most of the program.
__device__ __noinline__ char* find_address(FragmentList list, long long block_id,
                                           unsigned offset_bytes) {
  return address_in(fragment_at(list, offset_bytes), block_id, offset_bytes);
}

/// Where a byte of the block's host order lies in device memory. A leaf that lies in one fragment
/// looks it up once.
struct FragmentPlace {
  FragmentList list;
  long long block_id;
  unsigned offset_bytes;  // Of the leaf in host order.
  char* whole;            // The leaf's own address when it lies in one fragment, else null.

  __device__ __forceinline__ FragmentPlace(const FragmentList& all, long long id,
                                           unsigned leaf_offset_bytes, unsigned length_bytes)
      : list(all), block_id(id), offset_bytes(leaf_offset_bytes), whole(nullptr) {
    const KernelFragment& fragment = fragment_at(list, offset_bytes);
    const unsigned long long end_bytes = fragment.offset_bytes + fragment.length_bytes;
    if (offset_bytes + length_bytes <= end_bytes) {
      whole = address_in(fragment, block_id, offset_bytes);
    }
  }

  template <unsigned kWidthBytes>
  __device__ __forceinline__ char* at(unsigned inside_bytes) const {
    if (whole != nullptr) return whole + inside_bytes;
    if (kWidthBytes == kUnitBytes && list.equal_fragment_bytes != 0) {
      const unsigned place_bytes = offset_bytes + inside_bytes;
      return address_in(fragment_at(list, place_bytes), block_id, place_bytes);
    }
    return find_address(list, block_id, offset_bytes + inside_bytes);
  }
};

struct LinearPlace {
  char* begin;

  template <unsigned kWidthBytes>
  __device__ __forceinline__ char* at(unsigned inside_bytes) const {
    return begin + inside_bytes;
  }
};

// ---- Units ----

template <unsigned kWidthBytes>
struct Word;
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<1> {
  using Type = unsigned char;
};

template <unsigned kWidthBytes, typename Place>
__device__ __forceinline__ Unit load_unit(const Place& place, unsigned inside_bytes,
                                          unsigned length_bytes) {
  if constexpr (kWidthBytes == kUnitBytes) {
    if (inside_bytes >= length_bytes) return {0, 0};
    const ulonglong2 loaded =
        __ldcs(reinterpret_cast<const ulonglong2*>(place.template at<kWidthBytes>(inside_bytes)));
    return {loaded.x, loaded.y};
  } else {
    using Piece = typename Word<kWidthBytes>::Type;
    unsigned long long halves[2] = {0, 0};
    KVTIER_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      // Not unrolled in full: programs of single bytes would be as large as all others together.
      KVTIER_UNROLL_TWICE
      for (unsigned done = 0; done < 8; done += kWidthBytes) {
        const unsigned piece_bytes = inside_bytes + 8 * half + done;
        if (piece_bytes >= length_bytes) break;
        const unsigned long long piece =
            *reinterpret_cast<const Piece*>(place.template at<kWidthBytes>(piece_bytes));
        halves[half] |= piece << (8 * done);
      }
    }
    return {halves[0], halves[1]};
  }
}

template <unsigned kWidthBytes, typename Place>
__device__ __forceinline__ void store_unit(const Place& place, unsigned inside_bytes,
                                           unsigned length_bytes, const Unit& unit) {
  if constexpr (kWidthBytes == kUnitBytes) {
    if (inside_bytes >= length_bytes) return;
    *reinterpret_cast<ulonglong2*>(place.template at<kWidthBytes>(inside_bytes)) = make_ulonglong2(unit.low, unit.high);
  } else {
    using Piece = typename Word<kWidthBytes>::Type;
    const unsigned long long halves[2] = {unit.low, unit.high};
    KVTIER_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      KVTIER_UNROLL_TWICE
      for (unsigned done = 0; done < 8; done += kWidthBytes) {
        const unsigned piece_bytes = inside_bytes + 8 * half + done;
        if (piece_bytes >= length_bytes) break;
        *reinterpret_cast<Piece*>(place.template at<kWidthBytes>(piece_bytes)) =
            static_cast<Piece>(halves[half] >> (8 * done));
      }
    }
  }
}

// ---- The leaf hash: XXH3-64 of 4 KiB ----

constexpr unsigned long long kScrambleFactor = 0x9e3779b1ull;
constexpr unsigned long long kAvalancheFactor = 0x165667919e3779f9ull;

__device__ __forceinline__ unsigned long long multiply_halves(unsigned long long value) {
  return static_cast<unsigned long long>(static_cast<unsigned>(value)) * (value >> 32);
}

/// What a thread needs of the secret. Unit `lane` of a row of 32 is stripe lane / 4 of the row's
/// eight, hash lanes 2 * (lane % 4) and the one after it.
struct HashKeys {
  unsigned long long even[2];   // Rows 0, 2, 4, 6: the first half of a KiB.
  unsigned long long odd[2];    // Rows 1, 3, 5.
  unsigned long long last[2];   // Row 7, which ends with the leaf's last stripe.

  __device__ __forceinline__ explicit HashKeys(unsigned lane) {
    const unsigned hash_lane = 2 * (lane % 4);
    const unsigned stripe = lane / 4;
    KVTIER_UNROLL
    for (unsigned i = 0; i < 2; ++i) {
      even[i] = kvtier_leaf_hash_words.stripe[stripe + hash_lane + i];
      odd[i] = kvtier_leaf_hash_words.stripe[stripe + 8 + hash_lane + i];
      last[i] = stripe == 7 ? kvtier_leaf_hash_words.last[hash_lane + i] : odd[i];
    }
  }
};

/// The sum of one KiB and one hash lane, of the warp's 32: KiB lane / 8, hash lane
/// 2 * (lane % 4) + lane / 4 % 2.
__device__ __forceinline__ unsigned long long sum_units(const Unit (&units)[kUnitsPerThread],
                                                        const HashKeys& keys, unsigned lane) {
  unsigned long long sums[kKibPerLeaf][2];
  KVTIER_UNROLL
  for (unsigned kib = 0; kib < kKibPerLeaf; ++kib) {
    const Unit& first = units[2 * kib];
    const Unit& second = units[2 * kib + 1];
    const unsigned long long(&key)[2] = kib + 1 == kKibPerLeaf ? keys.last : keys.odd;
    sums[kib][0] = multiply_halves(first.low ^ keys.even[0]) + first.high +
                   multiply_halves(second.low ^ key[0]) + second.high;
    sums[kib][1] = multiply_halves(first.high ^ keys.even[1]) + first.low +
                   multiply_halves(second.high ^ key[1]) + second.low;
  }
  // Each step hands half of what a thread holds to its partner and adds the other half.
  const bool is_upper_pair = (lane & 16) != 0;
  unsigned long long pair[2][2];
  KVTIER_UNROLL
  for (unsigned kib = 0; kib < 2; ++kib) {
    KVTIER_UNROLL
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned long long kept = is_upper_pair ? sums[kib + 2][i] : sums[kib][i];
      const unsigned long long given = is_upper_pair ? sums[kib][i] : sums[kib + 2][i];
      pair[kib][i] = kept + __shfl_xor_sync(kAllLanes, given, 16);
    }
  }
  const bool is_upper = (lane & 8) != 0;
  unsigned long long single[2];
  KVTIER_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned long long kept = is_upper ? pair[1][i] : pair[0][i];
    const unsigned long long given = is_upper ? pair[0][i] : pair[1][i];
    single[i] = kept + __shfl_xor_sync(kAllLanes, given, 8);
  }
  const bool is_second = (lane & 4) != 0;
  const unsigned long long kept = is_second ? single[1] : single[0];
  const unsigned long long given = is_second ? single[0] : single[1];
  return kept + __shfl_xor_sync(kAllLanes, given, 4);
}

__device__ __forceinline__ unsigned long long digest_units(const Unit (&units)[kUnitsPerThread],
                                                           const HashKeys& keys, unsigned lane) {
  const unsigned long long sum = sum_units(units, keys, lane);
  const unsigned hash_lane = 2 * (lane % 4) + lane / 4 % 2;
  unsigned long long state = kvtier_leaf_hash_words.begin[hash_lane];
  KVTIER_UNROLL
  for (unsigned kib = 0; kib < kKibPerLeaf; ++kib) {
    state += __shfl_sync(kAllLanes, sum, static_cast<int>(lane % 8 + 8 * kib));
    if (kib + 1 < kKibPerLeaf) {
      state ^= state >> 47;
      state ^= kvtier_leaf_hash_words.scramble[hash_lane];
      state *= kScrambleFactor;
    }
  }
  const unsigned long long mine = state ^ kvtier_leaf_hash_words.merge[hash_lane];
  const unsigned long long other = __shfl_xor_sync(kAllLanes, mine, 4);
  unsigned long long merged = (mine * other) ^ __umul64hi(mine, other);
  merged += __shfl_xor_sync(kAllLanes, merged, 1);
  merged += __shfl_xor_sync(kAllLanes, merged, 2);
  unsigned long long digest = kvtier_leaf_hash_words.length + merged;
  digest ^= digest >> 37;
  digest *= kAvalancheFactor;
  return digest ^ (digest >> 32);
}

// ---- The kernels ----

template <Kind kKind, unsigned kWidthBytes>
__device__ __forceinline__ void copy_leaves(const KernelArguments& arguments) {
  const unsigned lane = threadIdx.x % kLanesPerWarp;
  const unsigned warps_per_cta = kThreadsPerCta / kLanesPerWarp;
  const unsigned warp = blockIdx.x * warps_per_cta + threadIdx.x / kLanesPerWarp;
  const unsigned num_warps = gridDim.x * warps_per_cta;
  const HashKeys keys(lane);
  const FragmentList list{arguments.fragments, arguments.num_fragments,
                          arguments.equal_fragment_bytes};
  const unsigned turn_leaves = arguments.leaves_per_turn;
  for (unsigned begin = warp * turn_leaves; begin < arguments.num_leaves;
       begin += num_warps * turn_leaves) {
    const unsigned num_leaves = min(turn_leaves, arguments.num_leaves - begin);
    unsigned long long kept_digest = 0;
    for (unsigned index = 0; index < num_leaves; ++index) {
      const unsigned place_leaf = arguments.first_leaf + begin + index;
      const KernelPlace& place = arguments.places[place_leaf / arguments.leaves_per_block];
      const unsigned leaf_index = place_leaf % arguments.leaves_per_block;
      const KernelPart& part = part_of(arguments, leaf_index);
      const unsigned inside_bytes = (leaf_index - part.first_leaf) * kLeafBytes;
      const unsigned offset_bytes = static_cast<unsigned>(part.offset_bytes) + inside_bytes;
      const unsigned length_bytes =
          min(kLeafBytes, static_cast<unsigned>(part.length_bytes) - inside_bytes);
      const FragmentPlace fragment(list, place.block_id, offset_bytes, length_bytes);
      const LinearPlace linear{reinterpret_cast<char*>(place.linear) + offset_bytes};
      Unit units[kUnitsPerThread];
      KVTIER_UNROLL
      for (unsigned row = 0; row < kUnitsPerThread; ++row) {
        const unsigned unit_bytes = (row * kLanesPerWarp + lane) * kUnitBytes;
        if constexpr (kKind == Kind::kScatter) {
          units[row] = load_unit<kWidthBytes>(linear, unit_bytes, length_bytes);
        } else {
          units[row] = load_unit<kWidthBytes>(fragment, unit_bytes, length_bytes);
        }
      }
      KVTIER_UNROLL
      for (unsigned row = 0; row < kUnitsPerThread; ++row) {
        const unsigned unit_bytes = (row * kLanesPerWarp + lane) * kUnitBytes;
        if constexpr (kKind == Kind::kScatter) {
          store_unit<kWidthBytes>(fragment, unit_bytes, length_bytes, units[row]);
        } else if constexpr (kKind == Kind::kGather) {
          store_unit<kWidthBytes>(linear, unit_bytes, length_bytes, units[row]);
        }
      }
      if (arguments.digests != nullptr) {
        const unsigned long long digest = digest_units(units, keys, lane);
        if (lane == index) kept_digest = digest;
      }
    }
    // Together, since a digest alone would cost the link four times its own bytes.
    if (arguments.digests != nullptr && lane < num_leaves) {
      arguments.digests[begin + lane] = kept_digest;
    }
  }
}

}  // namespace

#define KVTIER_KERNEL(name, kind, width_bytes)                                       \
  extern "C" __global__ void __launch_bounds__(kThreadsPerCta, 1)                    \
      name(const __grid_constant__ KernelArguments arguments) {                      \
    copy_leaves<kind, width_bytes>(arguments);                                       \
  }

KVTIER_KERNEL(kvtier_gather_16, Kind::kGather, 16)
KVTIER_KERNEL(kvtier_gather_4, Kind::kGather, 4)
KVTIER_KERNEL(kvtier_gather_1, Kind::kGather, 1)
KVTIER_KERNEL(kvtier_scatter_16, Kind::kScatter, 16)
KVTIER_KERNEL(kvtier_scatter_4, Kind::kScatter, 4)
KVTIER_KERNEL(kvtier_scatter_1, Kind::kScatter, 1)
KVTIER_KERNEL(kvtier_hash_16, Kind::kHash, 16)
KVTIER_KERNEL(kvtier_hash_4, Kind::kHash, 4)
KVTIER_KERNEL(kvtier_hash_1, Kind::kHash, 1)

}  // namespace kvtier::cuda
