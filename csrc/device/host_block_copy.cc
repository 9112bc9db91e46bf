// Runs of leaves that lie in one fragment at once, the others leaf by leaf. Thread-safe.
#include "device/host_block_copy.h"

#include <algorithm>

#include "base/leaf_copy.h"

namespace kvtier {
namespace {

/// Leaves of one block that follow each other, and where their digests go.
struct LeafRun {
  const FragmentTable& table;
  const BlockPlace& place;
  BlockCopyKind kind;
  std::uint32_t first_leaf;
  std::uint32_t num_leaves;
  std::uint64_t* digests;  // Null: nothing is hashed.
};

struct Piece {
  std::byte* fragment = nullptr;
  std::uint64_t length_bytes = 0;
};

// The fragment that holds a place of the host order, from there on.
Piece piece_at(const FragmentTable& table, std::int64_t block_id, std::uint64_t offset_bytes) {
  const std::size_t index = table.fragment_at(offset_bytes);
  const std::uint64_t inside_bytes = offset_bytes - table.fragment_offsets()[index];
  return {table.fragment_address(index, block_id) + inside_bytes,
          table.fragments()[index].length_bytes - inside_bytes};
}

// Moves a stretch of the block between its fragments and `linear`, where the stretch begins.
void copy_stretch(const LeafRun& run, std::uint64_t offset_bytes, std::uint64_t length_bytes,
                  std::byte* linear) {
  while (length_bytes > 0) {
    const Piece piece = piece_at(run.table, run.place.block_id, offset_bytes);
    const std::uint64_t part_bytes = std::min(length_bytes, piece.length_bytes);
    if (run.kind == BlockCopyKind::kScatter) {
      copy_bytes({piece.fragment, part_bytes}, {linear, part_bytes});
    } else {
      copy_bytes({linear, part_bytes}, {piece.fragment, part_bytes});
    }
    offset_bytes += part_bytes;
    length_bytes -= part_bytes;
    linear += part_bytes;
  }
}

void hash_piece(const LeafRun& run, std::uint64_t offset_bytes, const Piece& piece,
                std::span<std::uint64_t> digests) {
  if (run.kind == BlockCopyKind::kHash) {
    digest_leaves({piece.fragment, piece.length_bytes}, digests);
    return;
  }
  std::byte* linear = run.place.linear + offset_bytes;
  std::byte* target = run.kind == BlockCopyKind::kScatter ? piece.fragment : linear;
  std::byte* source = run.kind == BlockCopyKind::kScatter ? linear : piece.fragment;
  copy_and_digest_leaves({target, piece.length_bytes}, {source, piece.length_bytes}, digests);
}

// The next leaves: as many as lie whole in one fragment, or one that does not. Returns their
// number.
std::uint32_t hash_next(const LeafRun& run, std::uint32_t leaf_index) {
  const LeafExtent leaf = run.table.leaf(leaf_index);
  std::uint64_t* digests = run.digests + (leaf_index - run.first_leaf);
  Piece piece = piece_at(run.table, run.place.block_id, leaf.offset_bytes);
  if (piece.length_bytes < leaf.length_bytes) {
    std::byte passing[kLeafBytes];
    std::byte* linear =
        run.kind == BlockCopyKind::kHash ? passing : run.place.linear + leaf.offset_bytes;
    copy_stretch(run, leaf.offset_bytes, leaf.length_bytes, linear);
    digest_leaves({linear, leaf.length_bytes}, {digests, 1});
    return 1;
  }
  // A short leaf is the last of its part, so it is the last of what is hashed at once.
  const std::uint32_t limit = run.first_leaf + run.num_leaves;
  std::uint32_t end = leaf_index + 1;
  std::uint64_t length_bytes = leaf.length_bytes;
  while (end < limit && length_bytes % kLeafBytes == 0) {
    const LeafExtent next = run.table.leaf(end);
    if (length_bytes + next.length_bytes > piece.length_bytes) break;
    length_bytes += next.length_bytes;
    ++end;
  }
  piece.length_bytes = length_bytes;
  hash_piece(run, leaf.offset_bytes, piece, {digests, end - leaf_index});
  return end - leaf_index;
}

void copy_run(const LeafRun& run) {
  if (run.digests != nullptr) {
    for (std::uint32_t done = 0; done < run.num_leaves;) {
      done += hash_next(run, run.first_leaf + done);
    }
    return;
  }
  if (run.kind == BlockCopyKind::kHash) return;
  const LeafExtent first = run.table.leaf(run.first_leaf);
  const LeafExtent last = run.table.leaf(run.first_leaf + run.num_leaves - 1);
  copy_stretch(run, first.offset_bytes, last.offset_bytes + last.length_bytes - first.offset_bytes,
               run.place.linear + first.offset_bytes);
}

}  // namespace

void run_block_copy(const FragmentTable& table, const BlockCopy& op) {
  const std::uint32_t per_block = table.leaves_per_block();
  for (std::uint32_t done = 0; done < op.num_leaves;) {
    const std::uint32_t leaf = op.first_leaf + done;
    const std::uint32_t leaf_index = leaf % per_block;
    const std::uint32_t num_leaves = std::min(per_block - leaf_index, op.num_leaves - done);
    copy_run({table, op.places[leaf / per_block], op.kind, leaf_index, num_leaves,
              op.digests == nullptr ? nullptr : op.digests + done});
    done += num_leaves;
  }
}

}  // namespace kvtier
