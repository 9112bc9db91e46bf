// The seed of a random test: printed, and replayed from KVTIER_TEST_SEED. Single-threaded.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <random>

namespace kvtier {

inline std::uint64_t announce_random_seed() {
  const char* wanted = std::getenv("KVTIER_TEST_SEED");
  const std::uint64_t random_seed =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  MESSAGE("replay with KVTIER_TEST_SEED=" << random_seed);
  return random_seed;
}

}  // namespace kvtier
