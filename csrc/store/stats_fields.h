// The fields of StoreStats by name, for whoever writes them out. Stateless.
#pragma once

#include "store/store_stats.h"

namespace kvtier {

inline const char* health_word(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kDegraded:
      return "degraded";
    case Health::kStalled:
      return "stalled";
    case Health::kOff:
      return "off";
  }
  return "off";
}

/// Calls `visit(name, value)` for each; a value is an integer, a double, a bool or text.
template <typename Visit>
void visit_fields(const TierStats& stats, Visit&& visit) {
  visit("hits", stats.hits);
  visit("misses", stats.misses);
  visit("load_failures", stats.load_failures);
  visit("corrupt", stats.corrupt);
  visit("torn", stats.torn);
  visit("inserted", stats.inserted);
  visit("declined", stats.declined);
  visit("evicted", stats.evicted);
  visit("bytes_read", stats.bytes_read);
  visit("bytes_written", stats.bytes_written);
  visit("bytes_used", stats.bytes_used);
  visit("bytes_capacity", stats.bytes_capacity);
  visit("blocks", stats.blocks);
  visit("pinned_bytes", stats.pinned_bytes);
  visit("leased_bytes", stats.leased_bytes);
  visit("backlog_bytes", stats.backlog_bytes);
  visit("backlog_bytes_max", stats.backlog_bytes_max);
  visit("read_bytes_per_s", stats.read_bytes_per_s);
  visit("expected_read_bytes_per_s", stats.expected_read_bytes_per_s);
  visit("unserved_bytes", stats.unserved_bytes);
  visit("health", health_word(stats.health));
  visit("health_reason", stats.health_reason);
  visit("mode_io", stats.mode_io);
  visit("mode_direct", stats.mode_direct);
  visit("mode_note", stats.mode_note);
  visit("mode_io_note", stats.mode_io_note);
  visit("mode_numa", stats.mode_numa);
}

template <typename Visit>
void visit_fields(const JobStats& stats, Visit&& visit) {
  visit("puts", stats.puts);
  visit("gets", stats.gets);
  visit("saves", stats.saves);
  visit("loads", stats.loads);
  visit("ended", stats.ended);
  visit("cancelled", stats.cancelled);
  visit("refused", stats.refused);
  visit("prefetch_blocks", stats.prefetch_blocks);
  visit("prefetched_blocks", stats.prefetched_blocks);
  visit("unfinished", stats.unfinished);
  visit("suspended", stats.suspended);
  visit("listed", stats.listed);
  visit("prefetch_bytes_queued", stats.prefetch_bytes_queued);
  visit("copy_threads", stats.copy_threads);
}

/// Of the store itself; its parts (jobs, host, disk, latencies) are visited by themselves.
template <typename Visit>
void visit_fields(const StoreStats& stats, Visit&& visit) {
  visit("lookups", stats.lookups);
  visit("lookup_blocks", stats.lookup_blocks);
  visit("get_blocks", stats.get_blocks);
  visit("hit_blocks", stats.hit_blocks);
  visit("miss_blocks", stats.miss_blocks);
  visit("staging_bytes", stats.staging_bytes);
  visit("staging_bytes_used", stats.staging_bytes_used);
  visit("index_bytes", stats.index_bytes);
  visit("index_entries", stats.index_entries);
  visit("history_bytes", stats.history_bytes);
  visit("live_leases", stats.live_leases);
  visit("unknown_files", stats.unknown_files);
  visit("unknown_file_bytes", stats.unknown_file_bytes);
  visit("recovered_blocks", stats.recovered_blocks);
  visit("recover_damaged_entries", stats.recover_damaged_entries);
  visit("recover_s", stats.recover_s);
  visit("is_recovered_clean", stats.is_recovered_clean);
  visit("live_updates", stats.live_updates);
  visit("live_failures", stats.live_failures);
}

/// Calls `visit(kind, latency)` for each kind of call.
template <typename Visit>
void visit_latencies(const StoreStats& stats, Visit&& visit) {
  visit("get", stats.get_latency);
  visit("put", stats.put_latency);
  visit("load", stats.load_latency);
  visit("save", stats.save_latency);
}

}  // namespace kvtier
