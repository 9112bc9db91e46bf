// Copies that give the leaf digests of what they copied. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checksum.h"

namespace kvtier {

/// Copies `source` to `target` (equal lengths, not overlapping) and gives the leaf digests of what
/// arrived, in one pass over memory. digests: uint64[num_leaves_of(source.size())].
void copy_and_digest_leaves(std::span<std::byte> target, std::span<const std::byte> source,
                            std::span<std::uint64_t> digests);

}  // namespace kvtier
