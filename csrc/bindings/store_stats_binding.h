// StoreStats as the flat dictionary that Python nests. Needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "store/store_stats.h"

namespace kvtier::bindings {

/// Fields by name; "host" and "disk" are dictionaries, or None for a tier that is not configured.
pybind11::dict dict_of(const StoreStats& stats);

}  // namespace kvtier::bindings
