// Checksums of whole blocks, part by part. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "store/namespace_registry.h"

namespace kvtier::store {

/// Checksums of the parts of one block that lies contiguously at `bytes`.
std::vector<std::uint64_t> checksum_block(const Namespace& space, const BlockKey& key,
                                          const std::byte* bytes);
std::vector<std::uint64_t> copy_and_checksum_block(const Namespace& space, const BlockKey& key,
                                                   std::byte* target, const std::byte* source);

}  // namespace kvtier::store
