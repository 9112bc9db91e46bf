// Copy plans: the fewest copies, which move exactly the stretch.
#include "layout/copy_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvtier::testing {
namespace {

using layout::PlanDirection;

FragmentTable make_table_of(std::vector<Fragment> fragments, std::uint64_t num_blocks) {
  std::uint64_t block_bytes = 0;
  for (const Fragment& fragment : fragments) block_bytes += fragment.length_bytes;
  auto table = FragmentTable::create(std::move(fragments), {&block_bytes, 1}, num_blocks);
  REQUIRE_MESSAGE(table.is_ok(), table.status().to_string());
  return std::move(table).value();
}

TEST_CASE("no piece goes past a border on either side, and all bytes are still moved") {
  std::vector<std::byte> source(1000);
  std::vector<std::byte> target(1000);
  for (std::size_t index = 0; index < source.size(); ++index) {
    source[index] = static_cast<std::byte>(index * 7);
  }
  const std::vector<const std::byte*> sources = {source.data(), source.data() + 100,
                                                 source.data() + 700};
  const std::vector<const std::byte*> targets = {target.data() + 50, target.data() + 100,
                                                 target.data() + 1000};
  std::vector<CopyPiece> pieces = {{source.data(), target.data(), 600},
                                   {source.data() + 600, target.data() + 600, 400}};
  std::vector<CopyPiece> scratch;
  layout::cut_at_borders({sources, targets}, pieces, scratch);
  std::vector<std::uint64_t> lengths;
  for (const CopyPiece& piece : pieces) {
    lengths.push_back(piece.length_bytes);
    std::copy_n(piece.source, piece.length_bytes, piece.target);
  }
  CHECK(lengths == std::vector<std::uint64_t>{50, 50, 500, 100, 300});
  CHECK(source == target);
  const std::size_t num_before = pieces.size();
  layout::cut_at_borders({}, pieces, scratch);
  CHECK(pieces.size() == num_before);
}

TEST_CASE("pieces in any order are cut where borders are, and only there") {
  constexpr std::uint64_t kSeed = 815;
  Random random(kSeed);
  std::vector<std::byte> source(4000);
  std::vector<std::byte> target(4000);
  for (int turn = 0; turn < 200; ++turn) {
    CAPTURE(kSeed);
    CAPTURE(turn);
    std::vector<bool> is_border[2] = {std::vector<bool>(4001), std::vector<bool>(4001)};
    std::vector<const std::byte*> borders[2];
    for (std::size_t at = 0; at <= source.size(); ++at) {
      for (std::size_t side = 0; side < 2; ++side) {
        if (random.next() % 97 != 0) continue;
        is_border[side][at] = true;
        borders[side].push_back((side == 0 ? source : target).data() + at);
      }
    }
    std::vector<CopyPiece> pieces;
    for (int count = 0; count < 20; ++count) {
      const std::uint64_t length_bytes = 1 + random.next() % 300;
      pieces.push_back({source.data() + random.next() % (4000 - length_bytes),
                        target.data() + random.next() % (4000 - length_bytes), length_bytes});
    }
    std::vector<CopyPiece> wanted;
    for (const CopyPiece& piece : pieces) {
      for (std::uint64_t byte = 0; byte < piece.length_bytes; ++byte) {
        const auto source_at = static_cast<std::size_t>(piece.source + byte - source.data());
        const auto target_at = static_cast<std::size_t>(piece.target + byte - target.data());
        const bool is_cut = byte == 0 || is_border[0][source_at] || is_border[1][target_at];
        if (is_cut) wanted.push_back({piece.source + byte, piece.target + byte, 0});
        ++wanted.back().length_bytes;
      }
    }
    std::vector<CopyPiece> scratch;
    layout::cut_at_borders({borders[0], borders[1]}, pieces, scratch);
    const bool is_same = std::equal(pieces.begin(), pieces.end(), wanted.begin(), wanted.end(),
                                    [](const CopyPiece& left, const CopyPiece& right) {
                                      return left.source == right.source &&
                                             left.target == right.target &&
                                             left.length_bytes == right.length_bytes;
                                    });
    CHECK(is_same);
  }
}

TEST_CASE("a thousand adjacent fragments are one copy") {
  std::vector<std::byte> memory(1000 * 64);
  std::vector<std::byte> linear(memory.size());
  std::vector<Fragment> fragments;
  for (std::size_t index = 0; index < 1000; ++index) {
    fragments.push_back({memory.data() + index * 64, memory.size(), 64});
  }
  const FragmentTable table = make_table_of(fragments, 1);
  for (const auto direction : {PlanDirection::kToLinear, PlanDirection::kFromLinear}) {
    std::vector<CopyPiece> pieces;
    layout::append_fragment_pieces(table, {0, 0, memory.size()}, linear.data(), direction, pieces);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].length_bytes == memory.size());
    const bool is_gather = direction == PlanDirection::kToLinear;
    CHECK(pieces[0].source == (is_gather ? memory.data() : linear.data()));
    CHECK(pieces[0].target == (is_gather ? linear.data() : memory.data()));
  }
}

TEST_CASE("blocks that follow each other on both sides are one copy, others are not") {
  std::vector<std::byte> memory(8 * 256);
  std::vector<std::byte> linear(memory.size());
  const FragmentTable table = make_table_of({{memory.data(), 256, 256}}, 8);
  const auto num_pieces = [&](const std::vector<std::int64_t>& block_ids) {
    std::vector<CopyPiece> pieces;
    std::byte* place = linear.data();
    for (const std::int64_t block_id : block_ids) {
      layout::append_fragment_pieces(table, {block_id, 0, 256}, place, PlanDirection::kToLinear,
                                     pieces);
      place += 256;
    }
    return pieces.size();
  };
  CHECK(num_pieces({2, 3, 4, 5}) == 1);
  CHECK(num_pieces({2, 3, 5, 6}) == 2);
  CHECK(num_pieces({5, 4, 3}) == 3);
  CHECK(num_pieces({2, 2}) == 2);
}

TEST_CASE("nothing is planned for nothing") {
  std::vector<CopyPiece> pieces;
  std::byte memory[4] = {};
  layout::append_piece({memory, memory + 2, 0}, pieces);
  const FragmentTable table = make_table_of({{memory, 2, 2}}, 2);
  layout::append_fragment_pieces(table, {0, 1, 1}, memory, PlanDirection::kToLinear, pieces);
  CHECK(pieces.empty());
}

TEST_CASE("any stretch of any block goes to its place, byte by byte") {
  constexpr std::uint64_t kSeed = 4711;
  Random random(kSeed);
  for (int turn = 0; turn < 500; ++turn) {
    CAPTURE(kSeed);
    CAPTURE(turn);
    constexpr std::uint64_t kBlocks = 4;
    std::vector<std::uint64_t> lengths(1 + random.next() % 6);
    for (std::uint64_t& length : lengths) length = 1 + random.next() % 9;
    const std::uint64_t block_bytes = std::accumulate(lengths.begin(), lengths.end(), 0ull);
    std::vector<std::byte> memory(kBlocks * (block_bytes + 4 * lengths.size()));
    std::vector<Fragment> fragments;
    std::uint64_t place = 0;
    for (const std::uint64_t length : lengths) {
      const std::uint64_t stride = length + random.next() % 4;
      fragments.push_back({memory.data() + place, stride, length});
      place += kBlocks * stride;
    }
    for (std::size_t index = 0; index < memory.size(); ++index) {
      memory[index] = static_cast<std::byte>(random.next());
    }
    const FragmentTable table = make_table_of(fragments, kBlocks);
    const auto block_id = static_cast<std::int64_t>(random.next() % kBlocks);
    const std::uint64_t begin = random.next() % block_bytes;
    const std::uint64_t end = begin + random.next() % (block_bytes - begin) + 1;
    std::vector<std::byte> linear(block_bytes);
    std::vector<std::byte> wanted(block_bytes);
    for (std::uint64_t byte = begin; byte < end; ++byte) {
      const std::size_t index = table.fragment_at(byte);
      wanted[byte] =
          table.fragment_address(index, block_id)[byte - table.fragment_offsets()[index]];
    }
    std::vector<CopyPiece> pieces;
    layout::append_fragment_pieces(table, {block_id, begin, end}, linear.data(),
                                   PlanDirection::kToLinear, pieces);
    std::uint64_t sum_bytes = 0;
    for (const CopyPiece& piece : pieces) {
      std::copy_n(piece.source, piece.length_bytes, piece.target);
      sum_bytes += piece.length_bytes;
    }
    CHECK(sum_bytes == end - begin);
    CHECK(linear == wanted);
  }
}

}  // namespace
}  // namespace kvtier::testing
