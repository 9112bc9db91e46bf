// Numpy arrays and bytes of Python calls to plain values of the core and back. Needs the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "bindings/core_store.h"
#include "store/outcome.h"

namespace kvtier::bindings {

/// Copies, so that a caller who changes the array meanwhile confuses nobody. Throws UsageError
/// unless uint8[n, 16].
std::vector<BlockKey> keys_of(const KeyArray& keys);
/// Not copied: for calls where a key that changes meanwhile only changes what is looked for. Throws
/// as keys_of. The array must outlive the span.
std::span<const BlockKey> key_span_of(const pybind11::array& keys);
/// Whether it is what the calls above take: a C-contiguous array uint8[n, 16].
bool is_key_array(pybind11::handle keys);
/// Throws UsageError unless uint64[num_blocks].
std::vector<std::byte*> pointers_of(const AddressArray& addresses, std::size_t num_blocks);
/// Throws UsageError unless it has 16 bytes.
Digest128 digest_of(const pybind11::bytes& bytes);
std::optional<BlockKey> parent_of(const std::optional<pybind11::bytes>& parent);

KeyArray array_of(const std::vector<Outcome>& outcomes);
KeyArray array_of(const std::vector<Tier>& tiers);
/// uint8[n, 16].
KeyArray array_of_keys(const std::vector<BlockKey>& keys);

}  // namespace kvtier::bindings
