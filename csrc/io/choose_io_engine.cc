// The ring where it works, else threads. Thread-safe.
#include "io/choose_io_engine.h"

#include <utility>

#include "io/uring_io_engine.h"

namespace kvtier {

Result<ChosenIoEngine> choose_io_engine(IoMode mode, Clock& clock, std::uint32_t num_threads) {
  ChosenIoEngine chosen;
  if (mode != IoMode::kThreads) {
    UringIoOptions options;
    options.num_threads = num_threads;
    auto ring = make_uring_io_engine(clock, std::move(options));
    if (ring.is_ok()) {
      chosen.engine = std::move(ring).value();
      return chosen;
    }
    const Status& refusal = ring.status();
    if (mode == IoMode::kUring) {
      return Status(StatusCode::kConfig,
                    "io=uring cannot be had, use io=auto: " + refusal.message(),
                    refusal.os_errno());
    }
    chosen.note = refusal.message();
  }
  chosen.engine = make_threads_io_engine(clock, ThreadsIoOptions{num_threads});
  return chosen;
}

}  // namespace kvtier
