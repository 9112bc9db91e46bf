// What tests of transfers share, on any device: an engine's tensors of a shape, and the checksums
// of blocks. Pure but for the engine they are given.
#pragma once

#include <doctest/doctest.h>

#include <span>
#include <vector>

#include "device/block_tables.h"
#include "transfer/transfer_engine.h"

namespace kvtier::testing {

/// Two fragments that lie apart, of two leaves each.
inline const BlockShape kPlainShape{"two layers", {8192, 8192}, {}, 4096, 0};

inline constexpr auto kSave = transfer::TransferDirection::kSave;
inline constexpr auto kLoad = transfer::TransferDirection::kLoad;

inline constexpr transfer::TransferMethod kAllMethods[] = {transfer::TransferMethod::kCopyEngine,
                                                           transfer::TransferMethod::kStaged,
                                                           transfer::TransferMethod::kZeroCopy};

/// What memory holds that nobody has written.
inline constexpr std::byte kEmpty{0xa5};

/// Attaches the shape's tensors, one a fragment, that follow each other in `memory`.
inline transfer::AttachmentId attach_shape(transfer::TransferEngine& engine,
                                           const BlockShape& shape, std::span<std::byte> memory,
                                           std::uint64_t num_blocks) {
  std::vector<layout::TensorPlace> tensors;
  std::vector<layout::FragmentPlace> fragments;
  std::byte* place = memory.data();
  for (const std::uint64_t length_bytes : shape.fragment_bytes) {
    const std::uint64_t tensor_bytes = shape.tensor_bytes(length_bytes, num_blocks);
    fragments.push_back({static_cast<std::uint32_t>(tensors.size()), shape.shift_bytes,
                         length_bytes + shape.gap_bytes, length_bytes});
    tensors.push_back({place, tensor_bytes});
    place += tensor_bytes;
  }
  const auto attached = engine.attach(tensors, fragments, shape.parts());
  REQUIRE_MESSAGE(attached.is_ok(), attached.status().to_string());
  return attached.value();
}

/// The checksums of a block's parts, appended.
inline void append_checksums(const BlockShape& shape, std::span<const std::byte> bytes,
                             ChecksumSeed seed, std::vector<std::uint64_t>& sums) {
  std::uint64_t place = 0;
  for (const std::uint64_t length_bytes : shape.parts()) {
    sums.push_back(checksum_part(bytes.subspan(place, length_bytes), seed));
    place += length_bytes;
    ++seed.part_index;
  }
}

}  // namespace kvtier::testing
