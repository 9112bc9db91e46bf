// Use classes: what is known of a block at its last use, in 7 bits. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvtier::store {

inline constexpr std::size_t kNumUseLevels = 8;
inline constexpr std::size_t kNumUseClasses = 128;
/// Blocks of so many uses are taken for a prompt that many conversations share.
inline constexpr std::uint8_t kSharedUses = 32;

/// 0: one use; then 2, 3, up to 5, 8, 16, 40, and more.
constexpr std::uint8_t use_level(std::uint32_t num_uses) {
  constexpr std::uint32_t kLevelUsesMax[] = {1, 2, 3, 5, 8, 16, 40};
  std::uint8_t level = 0;
  while (level < std::size(kLevelUsesMax) && num_uses > kLevelUsesMax[level]) ++level;
  return level;
}

/// How the request looked that used the block last.
struct RequestShape {
  std::size_t num_new = 0;    // Blocks that nobody had used before.
  bool is_continued = false;  // It shares more than a common prompt with an earlier one.
};

constexpr std::uint8_t use_class_of(std::uint32_t num_uses, const RequestShape& shape,
                                    bool is_last) {
  const unsigned growth = shape.num_new <= 2    ? 0
                          : shape.num_new <= 6  ? 1
                          : shape.num_new <= 16 ? 2
                                                : 3;
  return static_cast<std::uint8_t>(use_level(num_uses) | (is_last ? 8u : 0u) |
                                   (shape.is_continued ? 16u : 0u) | growth << 5);
}

constexpr std::uint8_t use_level_of_class(std::uint8_t use_class) { return use_class & 7; }

}  // namespace kvtier::store
