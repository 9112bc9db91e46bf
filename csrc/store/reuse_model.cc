// Hazard tables and the values that follow from them. Guarded by the store's mutex.
#include "store/reuse_model.h"

#include <algorithm>
#include <numeric>

namespace kvtier::store {
namespace {

// Sooner than this hardly anything comes back, and a request of a long prompt takes as long.
constexpr std::uint32_t kFirstStepAge = 1024;
// A class is worth its own counts from here on; before, those of its level; before, the prior.
constexpr float kTrust = 50;
// Before anything is known: what was used twice is worth more than what was used once, however
// old, and among equals the younger is.
constexpr float kPriorOnce = 0.001f;
constexpr float kPriorAgain = 0.05f;
// No store lives long enough to count further.
constexpr float kCountMax = 1e9f;

constexpr std::array<std::uint32_t, kNumAgeSteps + 1> make_step_begins() {
  std::array<std::uint32_t, kNumAgeSteps + 1> begins{};
  for (std::size_t step = 1; step <= kNumAgeSteps; ++step) {
    const std::uint32_t doubled = kFirstStepAge << (step - 1) / 2;
    begins[step] = step % 2 == 1 ? doubled : doubled / 128 * 181;  // 181 / 128 is sqrt(2).
  }
  return begins;
}

constexpr std::array<std::uint32_t, kNumAgeSteps + 1> kStepBegins = make_step_begins();

float prior_of(std::size_t level) {
  return level == 0 ? kPriorOnce : kPriorAgain * static_cast<float>(level);
}

}  // namespace

std::uint32_t age_step_begin(std::size_t step) { return kStepBegins[step]; }

std::size_t age_step_of(std::uint32_t age) {
  const auto above = std::upper_bound(kStepBegins.begin() + 1, kStepBegins.end() - 1, age);
  return static_cast<std::size_t>(above - kStepBegins.begin()) - 1;
}

ReuseModel::ReuseModel() { refresh(1); }

void ReuseModel::refresh(float kept) {
  std::array<Steps, kNumUseLevels> level_returns{}, level_at_risk{};
  for (std::size_t c = 0; c < kNumUseClasses; ++c) {
    const std::size_t level = use_level_of_class(static_cast<std::uint8_t>(c));
    for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
      level_returns[level][step] += returns_[c][step];
      // What was taken back after it had faded is below zero.
      level_at_risk[level][step] += std::max(0.0f, at_risk_[c][step]);
    }
  }
  std::array<Steps, kNumUseLevels> level_hazards{};
  for (std::size_t level = 0; level < kNumUseLevels; ++level) {
    float before = 1;
    for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
      // What was used more often is believed to come back no less; the youngest uses of a level
      // have not had the time to show it. Where younger blocks were seen not to, older ones are
      // not.
      const float below = level == 0 ? 0 : level_hazards[level - 1][step];
      const float prior = std::min(std::max(prior_of(level), below), before);
      before =
          (level_returns[level][step] + kTrust * prior) / (level_at_risk[level][step] + kTrust);
      level_hazards[level][step] = before;
    }
  }
  for (std::size_t c = 0; c < kNumUseClasses; ++c) {
    const std::size_t level = use_level_of_class(static_cast<std::uint8_t>(c));
    Steps hazards{};
    for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
      const float of_class = (returns_[c][step] + kTrust * level_hazards[level][step]) /
                             (std::max(0.0f, at_risk_[c][step]) + kTrust);
      hazards[step] = std::clamp(of_class, 0.0f, 1.0f);
      returns_[c][step] *= kept;
      at_risk_[c][step] *= kept;
    }
    set_values(static_cast<std::uint8_t>(c), hazards);
  }
  std::iota(cells_.begin(), cells_.end(), std::uint16_t{0});
  // Of equal cells the older one goes first; the rest of the order is fixed, so that runs repeat.
  std::sort(cells_.begin(), cells_.end(), [this](std::uint16_t a, std::uint16_t b) {
    if (values_[a] != values_[b]) return values_[a] < values_[b];
    if (a % kNumAgeSteps != b % kNumAgeSteps) return a % kNumAgeSteps > b % kNumAgeSteps;
    return a < b;
  });
  for (std::size_t rank = 0; rank < kNumCells; ++rank) {
    ranks_[cells_[rank]] = static_cast<std::uint16_t>(rank);
  }
  ++generation_;
}

std::vector<format::ReuseCount> ReuseModel::counts() const {
  std::vector<format::ReuseCount> counts;
  for (std::size_t cell = 0; cell < kNumCells; ++cell) {
    // What was taken back after it had faded is a little below zero.
    const float at_risk = std::max(0.0f, at_risk_[cell / kNumAgeSteps][cell % kNumAgeSteps]);
    const float returns = returns_[cell / kNumAgeSteps][cell % kNumAgeSteps];
    if (at_risk == 0 && returns == 0) continue;
    counts.push_back({static_cast<std::uint16_t>(cell), at_risk, returns});
  }
  return counts;
}

bool ReuseModel::set_counts(std::span<const format::ReuseCount> counts) {
  const bool is_sound = std::all_of(counts.begin(), counts.end(), [](const auto& count) {
    // Not so for a NaN either.
    return count.cell < kNumCells && count.at_risk >= 0 && count.at_risk <= kCountMax &&
           count.returns >= 0 && count.returns <= kCountMax;
  });
  if (!is_sound) return false;
  at_risk_ = {};
  returns_ = {};
  for (const format::ReuseCount& count : counts) {
    at_risk_[count.cell / kNumAgeSteps][count.cell % kNumAgeSteps] = count.at_risk;
    returns_[count.cell / kNumAgeSteps][count.cell % kNumAgeSteps] = count.returns;
  }
  return true;
}

/// The value of a cell is the best ratio, over all times to give up, of the chance that the block
/// has come back by then to the time that it is kept for it (Gittins' index).
void ReuseModel::set_values(std::uint8_t use_class, const Steps& hazards) {
  float stays = 1;
  for (const float hazard : hazards) stays *= 1 - hazard;
  return_shares_[use_class] = 1 - stays;
  for (std::size_t first = 0; first < kNumAgeSteps; ++first) {
    double alive = 1, returned = 0, kept = 0, best = 0;
    for (std::size_t step = first; step < kNumAgeSteps; ++step) {
      const double width = kStepBegins[step + 1] - kStepBegins[step];
      const double returning = alive * hazards[step];
      returned += returning;
      kept += (alive - returning / 2) * width;
      alive -= returning;
      best = std::max(best, returned / kept);
    }
    values_[use_class * kNumAgeSteps + first] = static_cast<float>(best);
  }
}

}  // namespace kvtier::store
