// The io_uring engine: one thread with one ring submits and reaps; what the ring will not do goes
// to a pool of threads. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "io/io_engine.h"
#include "io/system_calls.h"

namespace kvtier {

struct UringIoOptions {
  /// Chunks with the kernel at once.
  std::uint32_t queue_depth = 32;
  /// Threads for tasks, and for ops that the ring could not finish.
  std::uint32_t num_threads = 8;
  /// For tests: sees each completion's result (bytes, or minus an errno) and gives the one to use.
  std::function<std::int32_t(std::int32_t result)> on_completion;
  /// For tests: what the threads beneath call.
  SystemCalls calls = real_system_calls();
};

/// Loads go before saves; saves go in chunks, few at a time while there are loads. Ops that end
/// short or fail in the ring are done once more, whole, by the threads, which continue short
/// transfers and give precise errors; when the ring refuses op after op, everything goes to the
/// threads for a minute (the info's note says so). The thread "kvtier-ring" starts at the first
/// submit. Fails as UringRing::create; kUnsupported without liburing in the build.
Result<std::unique_ptr<IoEngine>> make_uring_io_engine(Clock& clock, UringIoOptions options);

}  // namespace kvtier
