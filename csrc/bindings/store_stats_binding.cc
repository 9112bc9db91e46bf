// Fields of StoreStats by name. Needs the GIL.
#include "bindings/store_stats_binding.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

const char* health_word(Health health) {
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

py::object dict_of(const TierStats& stats) {
  if (!stats.is_present) return py::none();
  py::dict fields;
  fields["hits"] = stats.hits;
  fields["misses"] = stats.misses;
  fields["load_failures"] = stats.load_failures;
  fields["corrupt"] = stats.corrupt;
  fields["torn"] = stats.torn;
  fields["inserted"] = stats.inserted;
  fields["declined"] = stats.declined;
  fields["evicted"] = stats.evicted;
  fields["bytes_read"] = stats.bytes_read;
  fields["bytes_written"] = stats.bytes_written;
  fields["bytes_used"] = stats.bytes_used;
  fields["bytes_capacity"] = stats.bytes_capacity;
  fields["blocks"] = stats.blocks;
  fields["pinned_bytes"] = stats.pinned_bytes;
  fields["leased_bytes"] = stats.leased_bytes;
  fields["backlog_bytes"] = stats.backlog_bytes;
  fields["read_bytes_per_s"] = stats.read_bytes_per_s;
  fields["expected_read_bytes_per_s"] = stats.expected_read_bytes_per_s;
  fields["unserved_bytes"] = stats.unserved_bytes;
  fields["health"] = health_word(stats.health);
  fields["health_reason"] = stats.health_reason;
  fields["mode_io"] = stats.mode_io;
  fields["mode_direct"] = stats.mode_direct;
  fields["mode_note"] = stats.mode_note;
  fields["mode_io_note"] = stats.mode_io_note;
  fields["mode_numa"] = stats.mode_numa;
  return fields;
}

py::dict dict_of(const JobStats& stats) {
  py::dict fields;
  fields["puts"] = stats.puts;
  fields["gets"] = stats.gets;
  fields["saves"] = stats.saves;
  fields["loads"] = stats.loads;
  fields["ended"] = stats.ended;
  fields["cancelled"] = stats.cancelled;
  fields["refused"] = stats.refused;
  fields["prefetch_blocks"] = stats.prefetch_blocks;
  fields["prefetched_blocks"] = stats.prefetched_blocks;
  fields["unfinished"] = stats.unfinished;
  fields["suspended"] = stats.suspended;
  fields["listed"] = stats.listed;
  fields["prefetch_bytes_queued"] = stats.prefetch_bytes_queued;
  fields["copy_threads"] = stats.copy_threads;
  return fields;
}

}  // namespace

py::dict dict_of(const StoreStats& stats) {
  py::dict fields;
  fields["lookups"] = stats.lookups;
  fields["lookup_blocks"] = stats.lookup_blocks;
  fields["get_blocks"] = stats.get_blocks;
  fields["hit_blocks"] = stats.hit_blocks;
  fields["miss_blocks"] = stats.miss_blocks;
  fields["staging_bytes"] = stats.staging_bytes;
  fields["staging_bytes_used"] = stats.staging_bytes_used;
  fields["index_bytes"] = stats.index_bytes;
  fields["index_entries"] = stats.index_entries;
  fields["history_bytes"] = stats.history_bytes;
  fields["live_leases"] = stats.live_leases;
  fields["unknown_files"] = stats.unknown_files;
  fields["unknown_file_bytes"] = stats.unknown_file_bytes;
  fields["recovered_blocks"] = stats.recovered_blocks;
  fields["recover_damaged_entries"] = stats.recover_damaged_entries;
  fields["recover_s"] = stats.recover_s;
  fields["is_recovered_clean"] = stats.is_recovered_clean;
  fields["jobs"] = dict_of(stats.jobs);
  fields["host"] = dict_of(stats.host);
  fields["disk"] = dict_of(stats.disk);
  return fields;
}

}  // namespace kvtier::bindings
