// Chooses the I/O engine by the setting and by what the machine permits. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "io/io_engine.h"

namespace kvtier {

enum class IoMode : std::uint8_t { kAuto, kUring, kThreads };

struct ChosenIoEngine {
  std::unique_ptr<IoEngine> engine;
  std::string note;  // Why `kAuto` did not give the ring; else empty.
};

/// `kAuto` takes the ring where it works, but threads where one CPU has to do: the ring's thread
/// and the kernel's workers behind it would only take turns there. `num_threads` 0: as the CPUs
/// permit. kConfig, naming errno and remedy, when `kUring` cannot be honoured.
Result<ChosenIoEngine> choose_io_engine(IoMode mode, Clock& clock, std::uint32_t num_threads,
                                        std::uint32_t num_cpus);

}  // namespace kvtier
