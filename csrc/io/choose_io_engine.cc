// The ring where it works, else threads. Thread-safe.
#include "io/choose_io_engine.h"

#include <utility>

#include "io/threads_io_engine.h"
#include "io/uring_io_engine.h"

namespace kvtier {

Result<ChosenIoEngine> choose_io_engine(IoMode mode, Clock& clock, std::uint32_t num_threads,
                                        std::uint32_t num_cpus) {
  ChosenIoEngine chosen;
  if (num_threads == 0) num_threads = choose_num_io_threads(num_cpus);
  if (mode == IoMode::kUring || (mode == IoMode::kAuto && num_cpus > 1)) {
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
