// The parts of the extension module kvtier._core. Called once each, at import, with the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace kvtier::bindings {

void bind_errors(pybind11::module_& module);
void bind_store(pybind11::module_& module);
void bind_sim(pybind11::module_& module);
void bind_tools(pybind11::module_& module);
void bind_policies(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_transfer(pybind11::module_& module);
void bind_worker(pybind11::module_& module);

}  // namespace kvtier::bindings
