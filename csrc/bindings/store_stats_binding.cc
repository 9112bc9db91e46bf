// Fields of StoreStats by name. Needs the GIL.
#include "bindings/store_stats_binding.h"

#include <pybind11/stl.h>

#include "store/stats_fields.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

template <typename Stats>
py::dict fields_of(const Stats& stats) {
  py::dict fields;
  visit_fields(stats, [&fields](const char* name, const auto& value) { fields[name] = value; });
  return fields;
}

py::object dict_of(const TierStats& stats) {
  if (!stats.is_present) return py::none();
  return fields_of(stats);
}

py::dict dict_of(const LatencyStats& stats) {
  py::dict fields;
  fields["calls"] = stats.calls;
  fields["total_ns"] = stats.total_ns;
  fields["buckets"] = py::cast(stats.buckets);
  return fields;
}

}  // namespace

py::dict dict_of(const StoreStats& stats) {
  py::dict fields = fields_of(stats);
  fields["jobs"] = fields_of(stats.jobs);
  fields["host"] = dict_of(stats.host);
  fields["disk"] = dict_of(stats.disk);
  py::dict latencies;
  visit_latencies(stats, [&latencies](const char* kind, const LatencyStats& latency) {
    latencies[kind] = dict_of(latency);
  });
  fields["latency"] = latencies;
  return fields;
}

}  // namespace kvtier::bindings
