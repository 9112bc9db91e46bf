// The extension module kvtier._core: its parts, each in its own file.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of kvtier. Use the package kvtier instead.";
  kvtier::bindings::bind_errors(module);
  kvtier::bindings::bind_store(module);
  kvtier::bindings::bind_sim(module);
  kvtier::bindings::bind_tools(module);
  kvtier::bindings::bind_policies(module);
  kvtier::bindings::bind_device(module);
  kvtier::bindings::bind_transfer(module);
  kvtier::bindings::bind_worker(module);
}
