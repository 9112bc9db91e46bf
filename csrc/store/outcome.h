// Outcome: what became of one block of a call. Values are part of the Python interface.
#pragma once

#include <cstdint>

namespace kvtier {

enum class Outcome : std::uint8_t {
  kDone = 0,
  kMiss = 1,       // Not stored, or not reachable now.
  kDeclined = 2,   // Not taken: no slot, or its parent is not there. May be offered again.
  kCorrupt = 3,    // Stored bytes failed their checksum; the entry is gone.
  kTimeout = 4,    // The deadline came first; nothing was removed.
  kCancelled = 5,  // The caller or close() ended it.
  kFailed = 6,     // The medium failed after retries; the entry is gone.
};

enum class Tier : std::uint8_t { kNone = 0, kHost = 1, kDisk = 2, kRemote = 3 };

}  // namespace kvtier
