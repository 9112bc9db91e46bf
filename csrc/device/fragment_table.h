// FragmentTable: where the fragments of blocks lie in device memory and where in a block's host
// order, with the leaves of its checksum. Immutable after creation, so thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace kvtier {

/// One fragment of every block: block i's lies at base + i * stride_bytes.
struct Fragment {
  std::byte* base = nullptr;
  std::uint64_t stride_bytes = 0;
  std::uint64_t length_bytes = 0;
};

/// Where a leaf lies in its block's host order. The last leaf of a part may be short.
struct LeafExtent {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};

class FragmentTable {
 public:
  struct Part {
    std::uint64_t offset_bytes = 0;
    std::uint64_t length_bytes = 0;
    std::uint32_t first_leaf = 0;
    bool operator==(const Part&) const = default;
  };

  /// fragments:  in the block's host order.
  /// part_bytes: the block's parts; their leaves are counted on from part to part.
  /// num_blocks: block ids are 0 .. num_blocks - 1.
  /// Returns kInvalidArgument: nothing to copy, a fragment without address or bytes, strides that
  /// make blocks overlap, parts that do not add up to the fragments, a block over kBlockBytesMax.
  static Result<FragmentTable> create(std::vector<Fragment> fragments,
                                      std::span<const std::uint64_t> part_bytes,
                                      std::uint64_t num_blocks);

  const std::vector<Fragment>& fragments() const { return fragments_; }
  /// Where each fragment begins in host order.
  const std::vector<std::uint64_t>& fragment_offsets() const { return fragment_offsets_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::uint64_t num_blocks() const { return num_blocks_; }
  std::uint64_t block_bytes() const { return block_bytes_; }
  std::uint32_t leaves_per_block() const { return leaves_per_block_; }
  /// What all addresses, strides, lengths and offsets are multiples of: 16, 8, 4, 2 or 1.
  std::uint32_t alignment_bytes() const { return alignment_bytes_; }
  /// The length that all fragments share; 0: they differ.
  std::uint64_t equal_fragment_bytes() const { return equal_fragment_bytes_; }

  LeafExtent leaf(std::uint32_t leaf_index) const;
  std::byte* fragment_address(std::size_t fragment_index, std::int64_t block_id) const;
  /// The fragment that holds this place of the host order.
  std::size_t fragment_at(std::uint64_t offset_bytes) const;

  static constexpr std::uint64_t kBlockBytesMax = 256ull << 20;
  static constexpr std::size_t kFragmentsMax = 4096;
  static constexpr std::size_t kPartsMax = 1024;

 private:
  FragmentTable() = default;

  std::vector<Fragment> fragments_;
  std::vector<std::uint64_t> fragment_offsets_;
  std::vector<Part> parts_;
  std::uint64_t num_blocks_ = 0;
  std::uint64_t block_bytes_ = 0;
  std::uint64_t equal_fragment_bytes_ = 0;
  std::uint32_t leaves_per_block_ = 0;
  std::uint32_t alignment_bytes_ = 16;
};

}  // namespace kvtier
