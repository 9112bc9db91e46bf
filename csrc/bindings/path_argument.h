// A path that Python hands over, as the system wants it. Needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace kvtier::bindings {

/// path: text, bytes or os.PathLike. Paths are bytes to the system: os.fsencode gives back what
/// os.fsdecode made of them.
inline std::string native_path_of(const pybind11::handle& path) {
  return pybind11::bytes(pybind11::module_::import("os").attr("fsencode")(path));
}

}  // namespace kvtier::bindings
