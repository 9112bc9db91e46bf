// Random: a seeded generator whose sequence is the same on every platform and library. Not
// thread-safe.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace kvtier {

/// Splitmix64: a counter stepped by an odd constant and scrambled. Any seed is a good one, and a
/// fork for a part of a program is a generator seeded from this one's next value.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return mixed ^ (mixed >> 31);
  }

  /// In [0, bound). The bias of the remainder is below 2^-32 for the bounds that tests use.
  std::uint64_t below(std::uint64_t bound) {
    KVTIER_CHECK(bound > 0);
    return next() % bound;
  }

  /// In [first, last], both included.
  std::uint64_t between(std::uint64_t first, std::uint64_t last) {
    KVTIER_CHECK(first <= last);
    const std::uint64_t span = last - first;
    return span == UINT64_MAX ? next() : first + below(span + 1);
  }

  /// In [0, 1), with 53 random bits.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  /// True with the given probability. Draws nothing for 0, so that a fault that is off does not
  /// shift the sequence of the others.
  bool is_hit(double probability) { return probability > 0 && unit() < probability; }

 private:
  std::uint64_t state_;
};

}  // namespace kvtier
