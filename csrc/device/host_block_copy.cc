// Leaf by leaf, fragment by fragment, with memcpy. Thread-safe.
#include "device/host_block_copy.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"

namespace kvtier {
namespace {

// Moves one leaf between its fragments and `linear`, where the leaf's own bytes begin.
void copy_leaf(const FragmentTable& table, std::int64_t block_id, const LeafExtent& leaf,
               std::byte* linear, BlockCopyKind kind) {
  std::size_t fragment_index = table.fragment_at(leaf.offset_bytes);
  std::uint64_t done_bytes = 0;
  while (done_bytes < leaf.length_bytes) {
    const std::uint64_t inside_bytes =
        leaf.offset_bytes + done_bytes - table.fragment_offsets()[fragment_index];
    const std::uint64_t length_bytes =
        std::min(leaf.length_bytes - done_bytes,
                 table.fragments()[fragment_index].length_bytes - inside_bytes);
    std::byte* fragment = table.fragment_address(fragment_index, block_id) + inside_bytes;
    if (kind == BlockCopyKind::kScatter) {
      std::memcpy(fragment, linear + done_bytes, length_bytes);
    } else {
      std::memcpy(linear + done_bytes, fragment, length_bytes);
    }
    done_bytes += length_bytes;
    ++fragment_index;
  }
}

}  // namespace

void run_block_copy(const FragmentTable& table, const BlockCopy& op) {
  for (std::uint32_t index = 0; index < op.num_leaves; ++index) {
    const std::uint32_t leaf_index = op.first_leaf + index;
    const BlockPlace& place = op.places[leaf_index / table.leaves_per_block()];
    const LeafExtent leaf = table.leaf(leaf_index % table.leaves_per_block());
    std::byte passing[kLeafBytes];
    std::byte* linear =
        op.kind == BlockCopyKind::kHash ? passing : place.linear + leaf.offset_bytes;
    copy_leaf(table, place.block_id, leaf, linear, op.kind);
    if (op.digests != nullptr) digest_leaves({linear, leaf.length_bytes}, {op.digests + index, 1});
  }
}

}  // namespace kvtier
