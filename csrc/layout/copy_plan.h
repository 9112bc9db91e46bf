// Copy plans: the fewest contiguous copies that move a stretch of a block. Pure functions,
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/fragment_table.h"

namespace kvtier::layout {

/// A stretch of one block's host order, end excluded.
struct BlockStretch {
  std::int64_t block_id = 0;
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
};

enum class PlanDirection : std::uint8_t { kToLinear, kFromLinear };

/// Appends a copy from source to target, or lengthens the last one where both sides go on from it.
void append_piece(const CopyPiece& piece, std::vector<CopyPiece>& pieces);

/// Addresses in ascending order, which copies end at on either side.
struct CopyBorders {
  std::span<const std::byte* const> source;
  std::span<const std::byte* const> target;
};

/// Cuts pieces so that none goes on past a border of its side: no copy may span two allocations or
/// registrations, even where they follow each other. `scratch` is kept by the caller for its
/// memory.
void cut_at_borders(const CopyBorders& borders, std::vector<CopyPiece>& pieces,
                    std::vector<CopyPiece>& scratch);

/// Appends the copies between the stretch's fragments and `linear`, where the block's host order
/// begins.
void append_fragment_pieces(const FragmentTable& table, const BlockStretch& stretch,
                            std::byte* linear, PlanDirection direction,
                            std::vector<CopyPiece>& pieces);

}  // namespace kvtier::layout
