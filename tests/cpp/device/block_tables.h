// Fragment tables over memory of a test, and the bytes of blocks as a plain loop sees them. For one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "device/fragment_table.h"
#include "testing/payload.h"

namespace kvtier::testing {

/// A shape of blocks: one tensor a fragment, each block's fragment `gap_bytes` after the last.
struct BlockShape {
  std::string name;
  std::vector<std::uint64_t> fragment_bytes;
  std::vector<std::uint64_t> part_bytes;  // Empty: one part.
  std::uint64_t gap_bytes = 0;
  std::uint64_t shift_bytes = 0;  // Of every base, off its alignment.

  std::uint64_t block_bytes() const {
    std::uint64_t sum_bytes = 0;
    for (const std::uint64_t length_bytes : fragment_bytes) sum_bytes += length_bytes;
    return sum_bytes;
  }
  std::vector<std::uint64_t> parts() const {
    return part_bytes.empty() ? std::vector{block_bytes()} : part_bytes;
  }
  /// What make_table() needs for `num_blocks`.
  std::uint64_t memory_bytes(std::uint64_t num_blocks) const {
    std::uint64_t sum_bytes = 0;
    for (const std::uint64_t length_bytes : fragment_bytes) {
      sum_bytes += tensor_bytes(length_bytes, num_blocks);
    }
    return sum_bytes;
  }
  std::uint64_t tensor_bytes(std::uint64_t length_bytes, std::uint64_t num_blocks) const {
    return ((length_bytes + gap_bytes) * num_blocks + shift_bytes + 15) / 16 * 16;
  }
};

/// Shapes that differ in what code has to do with them.
inline std::vector<BlockShape> block_shapes() {
  return {
      {"two layers of 32 KiB", {32768, 32768}, {}, 0, 0},
      {"many of 2 KiB", std::vector<std::uint64_t>(14, 2048), {}, 4096, 0},
      {"unequal, multiples of 16", {48, 4096, 1024, 16, 8192, 528}, {}, 32, 0},
      {"multiples of 4", {1028, 2060, 4100}, {}, 4, 4},
      {"odd", {1, 4097, 333, 12}, {}, 5, 3},
      {"one byte", {1}, {}, 0, 0},
      {"parts, one of them empty", {4096, 4096, 100, 924}, {5000, 0, 4216}, 0, 0},
      {"parts, empty at both ends", {4096, 1000}, {0, 0, 5000, 0, 96, 0}, 0, 0},
      {"small parts", {64, 64}, {32, 32, 64}, 64, 0},
      {"more leaves than warps", {163840}, {}, 0, 0},
  };
}

inline FragmentTable make_table(const BlockShape& shape, std::span<std::byte> memory,
                                std::uint64_t num_blocks) {
  std::vector<Fragment> fragments;
  std::uint64_t place = 0;
  for (const std::uint64_t length_bytes : shape.fragment_bytes) {
    fragments.push_back(
        {memory.data() + place + shape.shift_bytes, length_bytes + shape.gap_bytes, length_bytes});
    place += shape.tensor_bytes(length_bytes, num_blocks);
  }
  Result<FragmentTable> table = FragmentTable::create(fragments, shape.parts(), num_blocks);
  REQUIRE_MESSAGE(table.is_ok(), table.status().to_string());
  return std::move(table).value();
}

/// Block `block_id`'s bytes in host order; `memory` is a copy of what `base` points to.
inline std::vector<std::byte> gather_block(const FragmentTable& table,
                                           std::span<const std::byte> memory, const std::byte* base,
                                           std::int64_t block_id) {
  std::vector<std::byte> bytes;
  for (const Fragment& fragment : table.fragments()) {
    const std::uint64_t place = static_cast<std::uint64_t>(fragment.base - base) +
                                static_cast<std::uint64_t>(block_id) * fragment.stride_bytes;
    const auto found = memory.subspan(place, fragment.length_bytes);
    bytes.insert(bytes.end(), found.begin(), found.end());
  }
  return bytes;
}

/// The leaf digests of a block's bytes, part by part.
inline std::vector<std::uint64_t> digests_of(const FragmentTable& table,
                                             std::span<const std::byte> block) {
  std::vector<std::uint64_t> digests;
  for (const FragmentTable::Part& part : table.parts()) {
    std::vector<std::uint64_t> of_part(num_leaves_of(part.length_bytes));
    digest_leaves(block.subspan(part.offset_bytes, part.length_bytes), of_part);
    digests.insert(digests.end(), of_part.begin(), of_part.end());
  }
  return digests;
}

}  // namespace kvtier::testing
