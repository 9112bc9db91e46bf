// What the kernels of cuda_block_copy.cu are given, as host and device code see it. Plain values.
#pragma once

namespace kvtier::cuda {

inline constexpr unsigned kThreadsPerCta = 512;
inline constexpr unsigned kLanesPerWarp = 32;
inline constexpr unsigned kLeafBytes = 4096;
inline constexpr unsigned kPlacesMax = 224;

struct KernelFragment {
  unsigned long long base;
  unsigned long long stride_bytes;
  unsigned long long offset_bytes;  // Where it begins in the block's host order.
  unsigned long long length_bytes;
};

struct KernelPart {
  unsigned long long offset_bytes;
  unsigned long long length_bytes;
  unsigned first_leaf;
  unsigned padding;
};

struct KernelPlace {
  long long block_id;
  unsigned long long linear;
};

/// Passed by value: a launch keeps its own copy, so that nothing must outlive the call.
struct KernelArguments {
  const KernelFragment* fragments;
  const KernelPart* parts;
  unsigned long long* digests;  // Null: nothing is hashed.
  unsigned num_fragments;
  unsigned num_parts;
  unsigned equal_fragment_bytes;  // 0: they differ.
  unsigned leaves_per_block;
  unsigned first_leaf;
  unsigned num_leaves;
  unsigned leaves_per_turn;  // A warp takes so many leaves in a row.
  unsigned padding;
  KernelPlace places[kPlacesMax];
};
static_assert(sizeof(KernelArguments) <= 4096, "kernels of older devices take 4 KiB");

/// Words of the leaf hash that follow from its secret; see cuda_leaf_hash.h.
struct LeafHashWords {
  unsigned long long stripe[24];  // Stripe n of a KiB takes word n + lane.
  unsigned long long last[8];     // The leaf's last stripe, by lane.
  unsigned long long scramble[8];
  unsigned long long merge[8];
  unsigned long long begin[8];
  unsigned long long length;  // What the length of a leaf adds.
};

}  // namespace kvtier::cuda
