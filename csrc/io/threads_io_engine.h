// The factory of the threads engine that lets a test replace the kernel calls. Thread-safe.
#pragma once

#include <memory>

#include "io/io_engine.h"
#include "io/system_calls.h"

namespace kvtier {

/// As make_threads_io_engine(clock, options), with `calls` in place of the kernel's. What `calls`
/// captures must live as long as any thread that stop() had to leave behind.
std::unique_ptr<IoEngine> make_threads_io_engine(Clock& clock, const ThreadsIoOptions& options,
                                                 SystemCalls calls);

/// How many of `num_threads` may be busy with saves (a quarter, at least one, stays free) and with
/// saves and control together (one stays free for loads). With one thread both are 1.
std::uint32_t num_save_threads_max(std::uint32_t num_threads);
std::uint32_t num_background_threads_max(std::uint32_t num_threads);

/// How many threads suit a process with that many usable CPUs: enough to keep a device busy, fewer
/// where they would only take turns on one CPU.
std::uint32_t choose_num_io_threads(std::uint32_t num_cpus);

}  // namespace kvtier
