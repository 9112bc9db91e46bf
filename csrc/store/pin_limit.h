// The share of a tier that pins may take. Pure functions; thread-safe.
#pragma once

#include <cstdint>

namespace kvtier::store {

/// The rest has to go on serving everybody else.
constexpr std::uint64_t pinned_bytes_max(std::uint64_t capacity_bytes) {
  return capacity_bytes / 4;
}

}  // namespace kvtier::store
