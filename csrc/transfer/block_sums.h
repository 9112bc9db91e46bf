// BlockSums: the checksums of a job's blocks, made from the digests of their leaves as they arrive.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "device/fragment_table.h"

namespace kvtier::transfer {

class BlockSums {
 public:
  /// seeds:    [num_blocks], their part index is not looked at.
  /// expected: uint64[num_blocks, num_parts] to compare with; empty: the sums are kept instead.
  /// All of them outlive this object.
  BlockSums(const FragmentTable& table, std::span<const ChecksumSeed> seeds,
            std::span<const std::uint64_t> expected);

  /// uint64[any number]: the digests of the next leaves of the job.
  void take(std::span<const std::uint64_t> digests);

  /// Of the blocks that are complete; empty where there is something to compare with.
  std::vector<std::uint64_t> take_checksums() { return std::move(checksums_); }
  /// Blocks, counted through the job, that do not sum up to what is expected.
  const std::vector<std::size_t>& wrong_blocks() const { return wrong_blocks_; }

 private:
  void sum_block(std::span<const std::uint64_t> digests);

  const FragmentTable& table_;
  const std::span<const ChecksumSeed> seeds_;
  const std::span<const std::uint64_t> expected_;
  std::vector<std::uint64_t> begun_;  // Digests of the block that is not complete.
  std::vector<std::uint64_t> checksums_;
  std::vector<std::size_t> wrong_blocks_;
  std::size_t num_blocks_ = 0;  // Complete ones.
};

}  // namespace kvtier::transfer
