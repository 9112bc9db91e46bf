// Paged geometry: where an engine keeps the fragments of its blocks, checked against the tensors
// that hold them. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "device/fragment_table.h"

namespace kvtier::layout {

/// One tensor of the engine's KV cache, as plain memory.
struct TensorPlace {
  std::byte* base = nullptr;
  std::uint64_t length_bytes = 0;
};

/// One fragment of every block: block i's begins offset_bytes + i * stride_bytes into the tensor.
/// The list's order is the block's host order. Holds for K and V apart or packed, for a tensor a
/// layer or one across layers, for any order of heads and tokens within the fragment, for latent
/// attention's single vector and for layers of unequal size.
struct FragmentPlace {
  std::uint32_t tensor_index = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t stride_bytes = 0;
  std::uint64_t fragment_bytes = 0;
};

/// The table of these fragments, for as many blocks as every fragment has room for in its tensor.
/// Returns kInvalidArgument, naming fragment and tensor: a tensor that is not there, bytes out of
/// its range, fragments that overlap for some pair of blocks, and whatever FragmentTable::create()
/// refuses.
Result<FragmentTable> make_fragment_table(std::span<const TensorPlace> tensors,
                                          std::span<const FragmentPlace> fragments,
                                          std::span<const std::uint64_t> part_bytes);

}  // namespace kvtier::layout
