// The dictionary of options that Python passes, as StoreOptions. Needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "store/store_options.h"

namespace kvtier::bindings {

/// Missing names keep their defaults. Throws ConfigError (unknown name, wrong type or word).
StoreOptions store_options_of(const pybind11::dict& options);

}  // namespace kvtier::bindings
