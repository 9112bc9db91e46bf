// What submit_block_copy must do, run on each implementation by its own test file, and on the
// kernels where there is no GPU. For one thread.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/block_copy.h"
#include "device/block_tables.h"

namespace kvtier::testing {

/// Memory and a way to do ops on it at once.
class BlockCopyWorld {
 public:
  virtual ~BlockCopyWorld() = default;
  virtual std::span<std::byte> make_memory(std::size_t length_bytes) = 0;
  virtual std::span<std::byte> make_page_locked(std::size_t length_bytes) = 0;
  virtual void write(std::span<std::byte> memory, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> read(std::span<const std::byte> memory) = 0;
  /// Whether make_page_locked() gives what make_memory() gives.
  virtual bool is_memory_one() const { return false; }
  /// Does the op and waits for its end. `op.table_id` is set here.
  virtual void run(const FragmentTable& table, BlockCopy op) = 0;
};

inline constexpr std::byte kPoison{0xa5};

/// Three blocks of five, their payload, and what an op over them has to give.
class BlockCopyCase {
 public:
  BlockCopyCase(BlockCopyWorld& world, const BlockShape& shape, bool is_staged)
      : world_(world),
        block_bytes_(shape.block_bytes()),
        memory_(world.make_memory(shape.memory_bytes(kBlocks))),
        table_(make_table(shape, memory_, kBlocks)),
        payload_(make_payload({7, block_bytes_}, memory_.size())),
        num_leaves_(static_cast<std::uint32_t>(kBlockIds.size()) * table_.leaves_per_block()) {
    const std::size_t linear_bytes = kBlockIds.size() * block_bytes_ + 64;
    linear_ = is_staged ? world.make_memory(linear_bytes) : world.make_page_locked(linear_bytes);
    digest_memory_ = world.make_page_locked((num_leaves_ + 2) * sizeof(std::uint64_t));
    for (const std::int64_t block_id : kBlockIds) {
      places_.push_back({block_id, linear_.data() + packed_.size()});
      const auto block = gather_block(table_, payload_, memory_.data(), block_id);
      packed_.insert(packed_.end(), block.begin(), block.end());
      const auto of_block = digests_of(table_, block);
      wanted_digests_.insert(wanted_digests_.end(), of_block.begin(), of_block.end());
    }
    packed_.resize(linear_bytes, kPoison);
    op_.places = places_;
    op_.num_leaves = num_leaves_;
    op_.digests = reinterpret_cast<std::uint64_t*>(digest_memory_.data());
    op_.num_ctas = 2;
  }

  /// All leaves but the first and the last.
  void check_gather_of_some() {
    if (num_leaves_ <= 2) return;
    reset();
    op_.kind = BlockCopyKind::kGather;
    op_.first_leaf = 1;
    op_.num_leaves = num_leaves_ - 2;
    world_.run(table_, op_);
    std::vector<std::byte> wanted = packed_;
    const LeafExtent end = table_.leaf(table_.leaves_per_block() - 1);
    const std::uint64_t end_place = (kBlockIds.size() - 1) * block_bytes_ + end.offset_bytes;
    std::fill_n(wanted.begin(), table_.leaf(0).length_bytes, kPoison);
    std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(end_place), end.length_bytes, kPoison);
    CHECK(are_equal(world_.read(linear_), wanted));
    CHECK(digests(op_.num_leaves) ==
          std::vector(wanted_digests_.begin() + 1, wanted_digests_.end() - 1));
    CHECK(op_.digests[op_.num_leaves] == 0);
    op_.first_leaf = 0;
    op_.num_leaves = num_leaves_;
  }
  void check_hash() {
    reset();
    op_.kind = BlockCopyKind::kHash;
    world_.run(table_, op_);
    CHECK(digests(num_leaves_) == wanted_digests_);
  }
  /// The blocks and nothing else.
  void check_scatter() {
    reset();
    world_.write(linear_, packed_);
    world_.write(memory_, std::vector<std::byte>(memory_.size(), kPoison));
    op_.kind = BlockCopyKind::kScatter;
    world_.run(table_, op_);
    std::vector<std::byte> wanted(memory_.size(), kPoison);
    for (const std::int64_t block_id : kBlockIds) {
      for (std::size_t index = 0; index < table_.fragments().size(); ++index) {
        const auto place = table_.fragment_address(index, block_id) - memory_.data();
        std::copy_n(payload_.begin() + place, table_.fragments()[index].length_bytes,
                    wanted.begin() + place);
      }
    }
    CHECK(are_equal(world_.read(memory_), wanted));
    CHECK(digests(num_leaves_) == wanted_digests_);
  }
  void check_gather_without_digests() {
    reset();
    std::fill(digest_memory_.begin(), digest_memory_.end(), kPoison);
    op_.kind = BlockCopyKind::kGather;
    op_.digests = nullptr;
    world_.run(table_, op_);
    CHECK(are_equal(world_.read(linear_), packed_));
    CHECK(are_equal(digest_memory_, std::vector<std::byte>(digest_memory_.size(), kPoison)));
  }

 private:
  static constexpr std::uint64_t kBlocks = 5;
  static constexpr std::array<std::int64_t, 3> kBlockIds = {3, 0, 4};

  void reset() {
    world_.write(memory_, payload_);
    world_.write(linear_, std::vector<std::byte>(linear_.size(), kPoison));
    std::fill(digest_memory_.begin(), digest_memory_.end(), std::byte{0});
  }
  std::vector<std::uint64_t> digests(std::size_t num_digests) const {
    return {op_.digests, op_.digests + num_digests};
  }

  BlockCopyWorld& world_;
  const std::uint64_t block_bytes_;
  const std::span<std::byte> memory_;
  const FragmentTable table_;
  const std::vector<std::byte> payload_;
  const std::uint32_t num_leaves_;
  std::span<std::byte> linear_;
  std::span<std::byte> digest_memory_;
  std::vector<BlockPlace> places_;
  std::vector<std::byte> packed_;  // The blocks in host order, one after the other.
  std::vector<std::uint64_t> wanted_digests_;
  BlockCopy op_;
};

inline void check_block_copy_conformance(
    const std::function<std::unique_ptr<BlockCopyWorld>()>& make_world) {
  for (const BlockShape& shape : block_shapes()) {
    for (const bool is_staged : {true, false}) {
      if (is_staged && make_world()->is_memory_one()) continue;
      const std::unique_ptr<BlockCopyWorld> world = make_world();
      INFO("shape: ", shape.name, " staged: ", is_staged);
      BlockCopyCase of_shape(*world, shape, is_staged);
      of_shape.check_gather_of_some();
      of_shape.check_hash();
      of_shape.check_scatter();
      of_shape.check_gather_without_digests();
    }
  }
}

}  // namespace kvtier::testing
