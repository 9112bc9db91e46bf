// BlockMover: what carries blocks between host slots and an engine's own memory, for one save or
// load. The store plans and decides; only the mover touches the bytes. Plain data goes down to it,
// plain results come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/checksum.h"
#include "base/status.h"

namespace kvtier {

/// Some blocks of the call, each contiguous in its slot.
struct BlockMove {
  std::vector<std::size_t> block_indices;  // Positions in the call's keys.
  std::vector<std::byte*> slots;           // One a block.
  std::vector<ChecksumSeed> seeds;         // One a block; empty: no checksums.
  /// Loads with seeds: uint64[num_blocks, num_parts], what the bytes must sum up to.
  std::vector<std::uint64_t> checksums;
};

struct BlockMoveResult {
  /// Ok: all was moved, and what was loaded is what was saved. kCorrupt: some of a load is not.
  Status status = Status::ok();
  /// Saves with seeds: uint64[num_blocks, num_parts].
  std::vector<std::uint64_t> checksums;
  /// Loads: the blocks, as positions in the call's keys, whose engine memory holds nothing to rely
  /// on.
  std::vector<std::size_t> undefined_indices;
};

class BlockMover {
 public:
  using MoveId = std::uint64_t;
  using OnEnd = std::function<void(BlockMoveResult result)>;

  virtual ~BlockMover() = default;

  /// Starts a move. Slots belong to the mover until `on_end` was called: once, from another thread
  /// or a later call, never from within start(), and with no lock of the mover held. Does not
  /// block. A failure is answered here, and then `on_end` is not called.
  virtual Result<MoveId> start(BlockMove move, OnEnd on_end) = 0;
  /// Asks a move to end early; nothing: `on_end` still comes. A move that nobody works on, or whose
  /// slots will never be used again (are_slots_dead), may end here: the result, and `on_end` does
  /// not come. May be asked again. Does not block, and calls nobody.
  virtual std::optional<BlockMoveResult> cancel(MoveId move_id, bool are_slots_dead) = 0;
  /// There will be no more moves. May be called again.
  virtual void finish_starting() = 0;
};

}  // namespace kvtier
