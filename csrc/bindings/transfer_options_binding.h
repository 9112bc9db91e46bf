// Options, words and counters of the transfer engine as Python has them. Needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <string>

#include "transfer/transfer_types.h"

namespace kvtier::bindings {

const std::map<std::string, transfer::TransferDirection>& transfer_directions();
const std::map<std::string, transfer::TransferMethod>& transfer_methods();

/// Throws ConfigError for an unknown name.
transfer::TransferOptions transfer_options_of(const pybind11::dict& fields);
/// Flat.
pybind11::dict dict_of(const transfer::TransferStats& stats);

}  // namespace kvtier::bindings
