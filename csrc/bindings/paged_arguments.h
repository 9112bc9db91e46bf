// What Python says of paged tensors, as plain values of the core. Needs the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "layout/paged_geometry.h"

namespace kvtier::bindings {

using IdArray = pybind11::array_t<std::int64_t, pybind11::array::c_style>;
/// (address, length_bytes).
using TensorPair = std::pair<std::uint64_t, std::uint64_t>;
/// (tensor_index, offset_bytes, stride_bytes, fragment_bytes).
using FragmentFields = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>;

inline std::byte* pointer_of(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}
inline std::uint64_t address_of(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

inline std::vector<layout::TensorPlace> places_of(const std::vector<TensorPair>& tensors) {
  std::vector<layout::TensorPlace> places;
  for (const auto& [address, length_bytes] : tensors) {
    places.push_back({pointer_of(address), length_bytes});
  }
  return places;
}

inline std::vector<layout::FragmentPlace> fragments_of(
    const std::vector<FragmentFields>& fragments) {
  std::vector<layout::FragmentPlace> places;
  for (const auto& [tensor_index, offset_bytes, stride_bytes, fragment_bytes] : fragments) {
    places.push_back({tensor_index, offset_bytes, stride_bytes, fragment_bytes});
  }
  return places;
}

}  // namespace kvtier::bindings
