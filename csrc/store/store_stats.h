// Counters and gauges of a store: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "store/latency_stats.h"

namespace kvtier {

enum class Health : std::uint8_t { kOk, kDegraded, kStalled, kOff };

/// Counts are blocks unless the name says bytes. Counters never decrease.
struct TierStats {
  bool is_present = false;
  // Counters.
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t load_failures = 0;
  std::uint64_t corrupt = 0;
  std::uint64_t torn = 0;  // Subset of corrupt: entries recovered after an unclean close.
  std::uint64_t inserted = 0;
  std::uint64_t declined = 0;
  std::uint64_t evicted = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  // Gauges.
  std::uint64_t bytes_used = 0;
  std::uint64_t bytes_capacity = 0;
  std::uint64_t blocks = 0;
  std::uint64_t pinned_bytes = 0;
  std::uint64_t leased_bytes = 0;
  std::uint64_t backlog_bytes = 0;
  // Beyond it blocks are declined, and offered again later.
  std::uint64_t backlog_bytes_max = 0;
  double read_bytes_per_s = 0;  // While any read ran, lately; 0: not measured yet.
  // What to expect now; more than was measured where that is long ago. 0: unknown.
  double expected_read_bytes_per_s = 0;
  std::uint64_t unserved_bytes = 0;  // Written by a tier that has served nothing so far.
  Health health = Health::kOff;
  std::string health_reason;  // Empty when ok.
  // Mode: what is in effect, as words. Disk: io = "threads" | "uring" | "simulated"; direct =
  // "direct" | "buffered". Host: pages = "huge-advised" | "small"; numa = see NumaPolicy::text().
  std::string mode_io;
  std::string mode_direct;
  std::string mode_note;
  std::string mode_io_note;
  std::string mode_numa;
};

/// Of asynchronous calls. Counts are jobs unless the name says otherwise.
struct JobStats {
  // Counters.
  std::uint64_t puts = 0;
  std::uint64_t gets = 0;
  std::uint64_t saves = 0;
  std::uint64_t loads = 0;
  std::uint64_t ended = 0;      // Prefetches included.
  std::uint64_t cancelled = 0;  // Subset of ended.
  std::uint64_t refused = 0;    // Subset of ended: too many were unfinished.
  std::uint64_t prefetch_blocks = 0;
  std::uint64_t prefetched_blocks = 0;
  // Gauges.
  std::uint64_t unfinished = 0;
  std::uint64_t suspended = 0;  // Subset: wait for the disk, a buffer or another call.
  std::uint64_t listed = 0;     // Ended and not polled.
  std::uint64_t prefetch_bytes_queued = 0;
  std::uint64_t copy_threads = 0;
};

struct StoreStats {
  std::uint64_t lookups = 0;
  std::uint64_t lookup_blocks = 0;
  std::uint64_t get_blocks = 0;
  std::uint64_t hit_blocks = 0;
  std::uint64_t miss_blocks = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t staging_bytes_used = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t index_entries = 0;
  std::uint64_t history_bytes = 0;  // Of the adaptive policy's memory of keys.
  std::uint64_t live_leases = 0;
  std::uint64_t unknown_files = 0;  // Of format versions that this build does not know.
  std::uint64_t unknown_file_bytes = 0;
  std::uint64_t recovered_blocks = 0;  // Found by open.
  std::uint64_t recover_damaged_entries = 0;
  double recover_s = 0;
  bool is_recovered_clean = true;
  std::uint64_t live_updates = 0;   // How often the state was told to other processes.
  std::uint64_t live_failures = 0;  // How often that failed.
  JobStats jobs;
  // From call or submission to the end.
  LatencyStats get_latency;
  LatencyStats put_latency;
  LatencyStats load_latency;
  LatencyStats save_latency;
  TierStats host;
  TierStats disk;
};

}  // namespace kvtier
