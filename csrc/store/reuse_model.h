// ReuseModel: learns when blocks of each use class come back, and what keeping one is worth.
// Guarded by the store's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "format/uses_file.h"
#include "store/use_class.h"

namespace kvtier::store {

/// Ages count uses of any block since the block's last one; their steps widen by sqrt(2).
inline constexpr std::size_t kNumAgeSteps = 24;
/// The first age of a step.
std::uint32_t age_step_begin(std::size_t step);
std::size_t age_step_of(std::uint32_t age);

class ReuseModel {
 public:
  static constexpr std::size_t kNumCells = kNumUseClasses * kNumAgeSteps;

  ReuseModel();

  /// A use of the class lived to see this step without having been followed by another; `num` < 0
  /// takes that back.
  void add_at_risk(std::uint8_t use_class, std::size_t step, float num) {
    at_risk_[use_class][step] += num;
  }
  void add_return(std::uint8_t use_class, std::uint32_t age) {
    returns_[use_class][age_step_of(age)] += 1;
  }
  /// Turns the counts into values, and keeps this share of old counts.
  void refresh(float kept);
  /// The counts that are not zero, for a model of a later process.
  std::vector<format::ReuseCount> counts() const;
  /// Takes such counts in place of its own; values follow at the next refresh(). False, and nothing
  /// taken: they are not counts.
  bool set_counts(std::span<const format::ReuseCount> counts);

  static std::uint16_t cell_of(std::uint8_t use_class, std::uint32_t age) {
    return static_cast<std::uint16_t>(use_class * kNumAgeSteps + age_step_of(age));
  }
  /// Hits to be expected a slot and unit of time, with the best moment to give up.
  float value(std::uint16_t cell) const { return values_[cell]; }
  /// Share of uses of the class that another follows at any age seen.
  float return_share(std::uint8_t use_class) const { return return_shares_[use_class]; }
  /// Cells by rising value; rank_of is the inverse.
  std::uint16_t cell_at(std::size_t rank) const { return cells_[rank]; }
  std::uint16_t rank_of(std::uint16_t cell) const { return ranks_[cell]; }
  /// Grows with each refresh().
  std::uint32_t generation() const { return generation_; }

 private:
  using Steps = std::array<float, kNumAgeSteps>;

  void set_values(std::uint8_t use_class, const Steps& hazards);

  std::array<Steps, kNumUseClasses> at_risk_{};
  std::array<Steps, kNumUseClasses> returns_{};
  std::array<float, kNumCells> values_{};
  std::array<float, kNumUseClasses> return_shares_{};
  std::array<std::uint16_t, kNumCells> cells_{};
  std::array<std::uint16_t, kNumCells> ranks_{};
  std::uint32_t generation_ = 0;
};

}  // namespace kvtier::store
