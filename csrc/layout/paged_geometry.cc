// Checks of paged geometry. Thread-safe.
#include "layout/paged_geometry.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvtier::layout {
namespace {

std::string place_of(const FragmentPlace& fragment, std::size_t fragment_index) {
  return "fragment_index=" + std::to_string(fragment_index) +
         " tensor_index=" + std::to_string(fragment.tensor_index) +
         " offset_bytes=" + std::to_string(fragment.offset_bytes) +
         " stride_bytes=" + std::to_string(fragment.stride_bytes) +
         " fragment_bytes=" + std::to_string(fragment.fragment_bytes);
}

Status refused(const std::string& reason) {
  return Status(StatusCode::kInvalidArgument, "cannot use geometry: " + reason);
}

// How many blocks have their fragment inside the tensor.
Result<std::uint64_t> num_blocks_of(const FragmentPlace& fragment, std::size_t fragment_index,
                                    std::span<const TensorPlace> tensors) {
  if (fragment.tensor_index >= tensors.size()) {
    return refused("no such tensor: " + place_of(fragment, fragment_index) +
                   " num_tensors=" + std::to_string(tensors.size()));
  }
  const TensorPlace& tensor = tensors[fragment.tensor_index];
  const bool is_inside = fragment.fragment_bytes <= tensor.length_bytes &&
                         fragment.offset_bytes <= tensor.length_bytes - fragment.fragment_bytes;
  if (tensor.base == nullptr || !is_inside) {
    return refused("fragment out of its tensor: " + place_of(fragment, fragment_index) +
                   " tensor_bytes=" + std::to_string(tensor.length_bytes));
  }
  // One block, over and over: it has a single place.
  if (fragment.stride_bytes == 0) return std::uint64_t{1};
  const std::uint64_t room_bytes =
      tensor.length_bytes - fragment.offset_bytes - fragment.fragment_bytes;
  return room_bytes / fragment.stride_bytes + 1;
}

// Whether some block's `one` and some block's `other` share a byte. Their offsets count from one
// place.
bool are_overlapping(const FragmentPlace& one, const FragmentPlace& other,
                     std::uint64_t num_blocks) {
  const auto end_of = [num_blocks](const FragmentPlace& fragment) {
    return fragment.offset_bytes + (num_blocks - 1) * fragment.stride_bytes +
           fragment.fragment_bytes;
  };
  if (one.offset_bytes >= end_of(other) || other.offset_bytes >= end_of(one)) return false;
  // Ranges that meet interleave only when they go at one pace.
  if (one.stride_bytes != other.stride_bytes) return true;
  const bool is_ordered = one.offset_bytes <= other.offset_bytes;
  const FragmentPlace& first = is_ordered ? one : other;
  const FragmentPlace& second = is_ordered ? other : one;
  const std::uint64_t distance_bytes = second.offset_bytes - first.offset_bytes;
  if (num_blocks == 1) return distance_bytes < first.fragment_bytes;
  // `second` lies between two neighbours of `first`: the last that begins at or before it (there
  // may be none so far on) and the next.
  const std::uint64_t num_strides = std::min(distance_bytes / first.stride_bytes, num_blocks - 1);
  const std::uint64_t behind_bytes = distance_bytes - num_strides * first.stride_bytes;
  if (behind_bytes < first.fragment_bytes) return true;
  return num_strides + 1 < num_blocks && behind_bytes + second.fragment_bytes > first.stride_bytes;
}

// Tensors may be views of one memory, so addresses are compared.
Status check_overlaps(std::span<const TensorPlace> tensors,
                      std::span<const FragmentPlace> fragments, std::uint64_t num_blocks) {
  std::vector<FragmentPlace> placed(fragments.begin(), fragments.end());
  for (FragmentPlace& fragment : placed) {
    fragment.offset_bytes += reinterpret_cast<std::uintptr_t>(tensors[fragment.tensor_index].base);
  }
  for (std::size_t index = 0; index < placed.size(); ++index) {
    for (std::size_t before = 0; before < index; ++before) {
      if (are_overlapping(placed[before], placed[index], num_blocks)) {
        return refused("fragments overlap: " + place_of(fragments[before], before) + " and " +
                       place_of(fragments[index], index) +
                       " num_blocks=" + std::to_string(num_blocks));
      }
    }
  }
  return Status::ok();
}

}  // namespace

Result<FragmentTable> make_fragment_table(std::span<const TensorPlace> tensors,
                                          std::span<const FragmentPlace> fragments,
                                          std::span<const std::uint64_t> part_bytes) {
  if (fragments.empty()) return refused("it has no fragments");
  // Before the comparison of all pairs.
  if (fragments.size() > FragmentTable::kFragmentsMax) {
    return refused("too many fragments: num_fragments=" + std::to_string(fragments.size()) +
                   " num_fragments_max=" + std::to_string(FragmentTable::kFragmentsMax));
  }
  std::uint64_t num_blocks = UINT64_MAX;
  for (std::size_t index = 0; index < fragments.size(); ++index) {
    Result<std::uint64_t> room = num_blocks_of(fragments[index], index, tensors);
    if (!room.is_ok()) return room.status();
    num_blocks = std::min(num_blocks, room.value());
  }
  Status apart = check_overlaps(tensors, fragments, num_blocks);
  if (!apart.is_ok()) return apart;
  std::vector<Fragment> placed;
  placed.reserve(fragments.size());
  for (const FragmentPlace& fragment : fragments) {
    placed.push_back({tensors[fragment.tensor_index].base + fragment.offset_bytes,
                      fragment.stride_bytes, fragment.fragment_bytes});
  }
  return FragmentTable::create(std::move(placed), part_bytes, num_blocks);
}

}  // namespace kvtier::layout
