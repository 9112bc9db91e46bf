// Checks and sums of fragment tables. Thread-safe.
#include "device/fragment_table.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"

namespace kvtier {
namespace {

constexpr std::uint32_t kAlignmentMax = 16;

Status refused(const std::string& reason) {
  return Status(StatusCode::kInvalidArgument, "cannot use fragments: " + reason);
}

Status check_fragment(const Fragment& fragment, std::size_t fragment_index,
                      std::uint64_t num_blocks) {
  const std::string place = "fragment_index=" + std::to_string(fragment_index);
  if (fragment.base == nullptr) return refused("no address: " + place);
  if (fragment.length_bytes == 0) return refused("no bytes: " + place);
  if (fragment.length_bytes > FragmentTable::kBlockBytesMax) {
    return refused("too long: " + place +
                   " fragment_bytes=" + std::to_string(fragment.length_bytes));
  }
  if (num_blocks > 1 && fragment.stride_bytes < fragment.length_bytes) {
    return refused("blocks overlap: " + place +
                   " stride_bytes=" + std::to_string(fragment.stride_bytes) +
                   " fragment_bytes=" + std::to_string(fragment.length_bytes));
  }
  return Status::ok();
}

}  // namespace

Result<FragmentTable> FragmentTable::create(std::vector<Fragment> fragments,
                                            std::span<const std::uint64_t> part_bytes,
                                            std::uint64_t num_blocks) {
  if (fragments.empty() || num_blocks == 0) return refused("there is no block to copy");
  if (fragments.size() > kFragmentsMax || part_bytes.size() > kPartsMax) {
    return refused("too many: num_fragments=" + std::to_string(fragments.size()) + " (at most " +
                   std::to_string(kFragmentsMax) +
                   ") num_parts=" + std::to_string(part_bytes.size()) + " (at most " +
                   std::to_string(kPartsMax) + ")");
  }
  FragmentTable table;
  std::uint64_t any_bits = kAlignmentMax;
  table.equal_fragment_bytes_ = fragments.front().length_bytes;
  for (std::size_t index = 0; index < fragments.size(); ++index) {
    const Fragment& fragment = fragments[index];
    Status good = check_fragment(fragment, index, num_blocks);
    if (!good.is_ok()) return good;
    table.fragment_offsets_.push_back(table.block_bytes_);
    table.block_bytes_ += fragment.length_bytes;
    if (fragment.length_bytes != table.equal_fragment_bytes_) table.equal_fragment_bytes_ = 0;
    any_bits |= reinterpret_cast<std::uintptr_t>(fragment.base) | fragment.length_bytes;
    if (num_blocks > 1) any_bits |= fragment.stride_bytes;
  }
  if (table.block_bytes_ > kBlockBytesMax) {
    return refused("block too large: block_bytes=" + std::to_string(table.block_bytes_) +
                   " block_bytes_max=" + std::to_string(kBlockBytesMax));
  }
  std::uint64_t offset_bytes = 0;
  for (const std::uint64_t length_bytes : part_bytes) {
    if (length_bytes > table.block_bytes_ - offset_bytes) break;
    table.parts_.push_back({offset_bytes, length_bytes, table.leaves_per_block_});
    table.leaves_per_block_ += static_cast<std::uint32_t>(num_leaves_of(length_bytes));
    offset_bytes += length_bytes;
    any_bits |= length_bytes;
  }
  if (table.parts_.size() != part_bytes.size() || offset_bytes != table.block_bytes_) {
    return refused("the parts do not add up to the fragments: block_bytes=" +
                   std::to_string(table.block_bytes_) +
                   " num_parts=" + std::to_string(part_bytes.size()));
  }
  table.alignment_bytes_ = 1u << std::countr_zero(any_bits);
  table.num_blocks_ = num_blocks;
  table.fragments_ = std::move(fragments);
  return table;
}

LeafExtent FragmentTable::leaf(std::uint32_t leaf_index) const {
  KVTIER_CHECK(leaf_index < leaves_per_block_);
  // The last part that begins at or before the leaf; empty ones before it begin there too.
  const auto next = std::upper_bound(
      parts_.begin(), parts_.end(), leaf_index,
      [](std::uint32_t wanted, const Part& part) { return wanted < part.first_leaf; });
  const Part& part = *std::prev(next);
  const std::uint64_t inside_bytes = std::uint64_t{leaf_index - part.first_leaf} * kLeafBytes;
  return {part.offset_bytes + inside_bytes,
          std::min<std::uint64_t>(kLeafBytes, part.length_bytes - inside_bytes)};
}

std::byte* FragmentTable::fragment_address(std::size_t fragment_index,
                                           std::int64_t block_id) const {
  const Fragment& fragment = fragments_[fragment_index];
  return fragment.base + static_cast<std::uint64_t>(block_id) * fragment.stride_bytes;
}

std::size_t FragmentTable::fragment_at(std::uint64_t offset_bytes) const {
  KVTIER_CHECK(offset_bytes < block_bytes_);
  const auto next =
      std::upper_bound(fragment_offsets_.begin(), fragment_offsets_.end(), offset_bytes);
  return static_cast<std::size_t>(next - fragment_offsets_.begin()) - 1;
}

}  // namespace kvtier
