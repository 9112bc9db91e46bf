// Shared memory behind an arena: a file in memory that is nowhere in the file system and goes with
// its last user. Pure functions over descriptors, thread-safe.
#pragma once

#include <cstdint>

#include "base/digest.h"
#include "base/status.h"

namespace kvtier {

/// 128 random bits, new for each arena: proves which one a descriptor stands for, and is known only
/// to those who were told.
using ArenaId = Digest128;

/// From the system. kIoError when it gives none.
Result<ArenaId> make_arena_id();

/// A descriptor of `num_bytes` of memory, a multiple of the page, followed by one page that carries
/// `id` and belongs to no arena. Its length is sealed, so that no process can make another fault by
/// cutting it. kExhausted with need and reason when the system refuses.
Result<int> create_shared_memory(const ArenaId& id, std::uint64_t num_bytes);

/// kInvalidArgument, saying what is there instead: no sealed memory, no arena, another one, or one
/// of another size.
Status check_shared_memory(int fd, const ArenaId& id, std::uint64_t num_bytes);

/// Empty when the system has huge pages of shared memory for those who ask.
const char* shared_huge_pages_refused_because();

}  // namespace kvtier
