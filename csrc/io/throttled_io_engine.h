// Another disk on paper: an IoEngine that makes the one beneath as slow as asked, so that a 50 MB/s
// card, or a 14 GB/s array over files in memory, can be tried with real bytes. Thread-safe.
#pragma once

#include <memory>

#include "io/io_engine.h"
#include "io/throttle_options.h"

namespace kvtier {

/// Results of `beneath` are held back until the disk of `options` would have ended the op; one
/// thread named "kvtier-throttle", started at the first submit, gives them out. stop() holds
/// nothing back. `clock` must be the system's and outlive it.
std::unique_ptr<IoEngine> make_throttled_io_engine(std::unique_ptr<IoEngine> beneath, Clock& clock,
                                                   const ThrottleOptions& options);

}  // namespace kvtier
