// Plans copies fragment by fragment and merges neighbours. Thread-safe.
#include "layout/copy_plan.h"

#include <algorithm>
#include <functional>

namespace kvtier::layout {

void append_piece(const CopyPiece& piece, std::vector<CopyPiece>& pieces) {
  if (piece.length_bytes == 0) return;
  if (!pieces.empty()) {
    CopyPiece& last = pieces.back();
    if (last.source + last.length_bytes == piece.source &&
        last.target + last.length_bytes == piece.target) {
      last.length_bytes += piece.length_bytes;
      return;
    }
  }
  pieces.push_back(piece);
}

namespace {

// How far it is to the next border behind an address, at most `length_bytes`.
std::uint64_t room_before_border(std::span<const std::byte* const> borders,
                                 const std::byte* address, std::uint64_t length_bytes) {
  const auto next =
      std::upper_bound(borders.begin(), borders.end(), address, std::less<const std::byte*>());
  if (next == borders.end()) return length_bytes;
  const std::uintptr_t room_bytes =
      reinterpret_cast<std::uintptr_t>(*next) - reinterpret_cast<std::uintptr_t>(address);
  return std::min<std::uint64_t>(room_bytes, length_bytes);
}

}  // namespace

void cut_at_borders(std::span<const std::byte* const> borders, std::vector<CopyPiece>& pieces,
                    std::vector<CopyPiece>& scratch) {
  scratch.clear();
  for (CopyPiece piece : pieces) {
    while (piece.length_bytes > 0) {
      const std::uint64_t length_bytes =
          std::min(room_before_border(borders, piece.source, piece.length_bytes),
                   room_before_border(borders, piece.target, piece.length_bytes));
      scratch.push_back({piece.source, piece.target, length_bytes});
      piece = {piece.source + length_bytes, piece.target + length_bytes,
               piece.length_bytes - length_bytes};
    }
  }
  pieces.swap(scratch);
}

void append_fragment_pieces(const FragmentTable& table, const BlockStretch& stretch,
                            std::byte* linear, PlanDirection direction,
                            std::vector<CopyPiece>& pieces) {
  if (stretch.begin_bytes >= stretch.end_bytes) return;
  std::size_t fragment_index = table.fragment_at(stretch.begin_bytes);
  std::uint64_t place_bytes = stretch.begin_bytes;
  while (place_bytes < stretch.end_bytes) {
    const std::uint64_t offset_bytes = table.fragment_offsets()[fragment_index];
    const std::uint64_t fragment_end_bytes =
        offset_bytes + table.fragments()[fragment_index].length_bytes;
    const std::uint64_t length_bytes =
        std::min(fragment_end_bytes, stretch.end_bytes) - place_bytes;
    std::byte* fragment =
        table.fragment_address(fragment_index, stretch.block_id) + (place_bytes - offset_bytes);
    std::byte* other = linear + place_bytes;
    if (direction == PlanDirection::kToLinear) {
      append_piece({fragment, other, length_bytes}, pieces);
    } else {
      append_piece({other, fragment, length_bytes}, pieces);
    }
    place_bytes += length_bytes;
    ++fragment_index;
  }
}

}  // namespace kvtier::layout
