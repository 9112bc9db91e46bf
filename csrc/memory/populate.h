// populate(): memory taken from the system before it is needed, by several threads. Thread-safe.
#pragma once

#include <cstddef>
#include <span>

namespace kvtier {

/// Has the system give all whole pages of `memory` now, with what they hold. Others may use them
/// meanwhile. Blocks. False: it cannot (Linux before 5.14), or has none left; a control group at
/// its limit may end a process instead, as at any first use.
bool populate(std::span<std::byte> memory, std::size_t num_threads);

}  // namespace kvtier
