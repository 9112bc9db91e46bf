// Options of a store: plain values, checked once by Store::open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "io/choose_io_engine.h"
#include "io/throttle_options.h"
#include "memory/numa_policy.h"

namespace kvtier {

enum class DirectMode : std::uint8_t { kAuto, kOn, kOff };
/// Which blocks a full tier gives up, and which it lets in.
enum class EvictionMode : std::uint8_t { kAdaptive, kLru, kS3Fifo };

struct StoreOptions {
  /// Directory of the disk tier; empty: no disk tier.
  std::string path;
  /// Host tier; 0: none.
  std::uint64_t host_bytes = 0;
  /// On top of host_bytes, only with a disk tier: where loads land that get no host slot.
  std::uint64_t staging_bytes = 64ull << 20;
  /// How much memory of both is provided ahead of its use, so that first puts and loads do not wait
  /// for it; 0: none.
  std::uint64_t prefault_bytes = 0;
  /// Whether other processes may map the memory of both, to carry out moves of saves and loads.
  /// Pages are small then where the system has no huge ones for shared memory.
  bool is_arena_shared = false;
  /// On which nodes the memory of both lies.
  NumaOptions numa;
  /// Hard cap on allocated bytes of all kvtier files in the directory. 0 with a path is refused.
  std::uint64_t disk_bytes = 0;
  IoMode io = IoMode::kAuto;
  DirectMode direct = DirectMode::kAuto;
  /// Of the threads engine; 0: as many as suit the CPUs that this process may use.
  std::uint32_t num_io_threads = 0;
  EvictionMode eviction = EvictionMode::kAdaptive;
  /// Threads that copy for jobs and help with large copies; 0: the usable CPUs, less one.
  std::uint32_t num_copy_threads = 0;
  bool has_checksum = true;
  bool is_deleted_on_exit = false;
  std::uint64_t blocks_max = 16'777'216;
  TimeNs lock_wait_ns = 0;
  /// A disk that ends none of its running operations for this long is stalled.
  TimeNs stall_ns = 2 * kNsPerS;
  /// clear() and delete end within it.
  TimeNs default_timeout_ns = 30 * kNsPerS;
  /// How often the state is told to other processes through a file in the directory; 0: never.
  TimeNs publish_interval_ns = 0;
  /// For benchmarks and tests: makes the disk as slow as another one.
  std::optional<ThrottleOptions> simulated_disk;
};

}  // namespace kvtier
