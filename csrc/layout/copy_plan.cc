// Plans copies fragment by fragment and merges neighbours. Thread-safe.
#include "layout/copy_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>

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

// The borders of one side, and the two that the last address lay between: neighbours of it are
// found without a search.
class BorderedSide {
 public:
  explicit BorderedSide(std::span<const std::byte* const> borders) : borders_(borders) {}

  // How far it is to the next border behind the address, at most `length_bytes`.
  std::uint64_t room_bytes(const std::byte* address, std::uint64_t length_bytes) {
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    if (place < begin_ || place >= end_) find(address);
    return std::min<std::uint64_t>(end_ - place, length_bytes);
  }

 private:
  void find(const std::byte* address) {
    const auto next =
        std::upper_bound(borders_.begin(), borders_.end(), address, std::less<const std::byte*>());
    begin_ = next == borders_.begin() ? 0 : reinterpret_cast<std::uintptr_t>(*std::prev(next));
    end_ = next == borders_.end() ? UINTPTR_MAX : reinterpret_cast<std::uintptr_t>(*next);
  }

  const std::span<const std::byte* const> borders_;
  std::uintptr_t begin_ = 0;  // No address is below end_ yet.
  std::uintptr_t end_ = 0;
};

}  // namespace

void cut_at_borders(const CopyBorders& borders, std::vector<CopyPiece>& pieces,
                    std::vector<CopyPiece>& scratch) {
  BorderedSide sources(borders.source);
  BorderedSide targets(borders.target);
  scratch.clear();
  for (CopyPiece piece : pieces) {
    while (piece.length_bytes > 0) {
      const std::uint64_t length_bytes =
          std::min(sources.room_bytes(piece.source, piece.length_bytes),
                   targets.room_bytes(piece.target, piece.length_bytes));
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
