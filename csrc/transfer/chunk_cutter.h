// Cuts a job's leaves into chunks. Pure functions, thread-safe.
#pragma once

#include <cstdint>

#include "device/fragment_table.h"

namespace kvtier::transfer {

/// Leaves of a job, counted through its blocks, end excluded.
struct LeafRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Where a leaf lies when the job's blocks follow each other in host order. The job's end is the
/// place of the leaf after the last.
std::uint64_t leaf_place_bytes(const FragmentTable& table, std::uint64_t leaf);

/// The next chunk of `rest`, of at most `bytes_max` (one leaf at least), kBlockPlacesMax blocks and
/// `leaves_max` leaves; it ends with a block where that costs it little.
LeafRange cut_chunk(const FragmentTable& table, const LeafRange& rest, std::uint64_t bytes_max,
                    std::uint64_t leaves_max);

/// Which of a chunk's two steps comes first. The link is what limits; so the kernel's step must be
/// short where the link has nothing else to do: at the start when it comes first, at the end when
/// it comes last.
enum class ChunkSteps : std::uint8_t { kOne, kKernelFirst, kKernelLast };

/// How many bytes the next chunk should have. chunk_index: of those since the link was last idle.
std::uint64_t choose_chunk_bytes(ChunkSteps steps, std::uint64_t chunk_index,
                                 std::uint64_t rest_bytes, std::uint64_t chunk_bytes_max);

}  // namespace kvtier::transfer
