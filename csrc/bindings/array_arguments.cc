// Conversions of arrays and digests. Needs the GIL.
#include "bindings/array_arguments.h"

#include <cstring>
#include <string>

#include "bindings/errors_binding.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

void check(bool is_sound, const char* what) {
  if (!is_sound) throw_if_error(Status(StatusCode::kInvalidArgument, what));
}

template <typename Element>
KeyArray byte_array_of(const std::vector<Element>& values) {
  static_assert(sizeof(Element) == 1);
  KeyArray array(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) std::memcpy(array.mutable_data(), values.data(), values.size());
  return array;
}

}  // namespace

bool is_key_array(py::handle keys) {
  constexpr py::ssize_t kKeyBytes = sizeof(BlockKey);
  if (!py::isinstance<py::array>(keys)) return false;
  const auto array = py::reinterpret_borrow<py::array>(keys);
  if (array.ndim() != 2 || array.shape(1) != kKeyBytes) return false;
  return array.dtype().num() == py::detail::npy_api::NPY_UBYTE_ &&
         (array.flags() & py::array::c_style) != 0;
}

std::span<const BlockKey> key_span_of(const py::array& keys) {
  static_assert(alignof(BlockKey) == 1);
  check(is_key_array(keys), "keys: expected uint8[n, 16]");
  return {reinterpret_cast<const BlockKey*>(keys.data()), static_cast<std::size_t>(keys.shape(0))};
}

std::vector<BlockKey> keys_of(const KeyArray& keys) {
  const auto span = key_span_of(keys);
  return {span.begin(), span.end()};
}

std::vector<std::byte*> pointers_of(const AddressArray& addresses, std::size_t num_blocks) {
  check(addresses.ndim() == 1 && static_cast<std::size_t>(addresses.size()) == num_blocks,
        "addresses: expected uint64[num_blocks]");
  std::vector<std::byte*> pointers;
  pointers.reserve(num_blocks);
  for (std::size_t block_index = 0; block_index < num_blocks; ++block_index) {
    const std::uint64_t address = addresses.data()[block_index];
    pointers.push_back(reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)));
  }
  return pointers;
}

Digest128 digest_of(const py::bytes& bytes) {
  const std::string_view text = bytes;
  Digest128 digest;
  check(text.size() == digest.bytes.size(), "expected 16 bytes");
  std::memcpy(digest.bytes.data(), text.data(), text.size());
  return digest;
}

std::optional<BlockKey> parent_of(const std::optional<py::bytes>& parent) {
  if (!parent) return std::nullopt;
  return digest_of(*parent);
}

KeyArray array_of(const std::vector<Outcome>& outcomes) { return byte_array_of(outcomes); }
KeyArray array_of(const std::vector<Tier>& tiers) { return byte_array_of(tiers); }

KeyArray array_of_keys(const std::vector<BlockKey>& keys) {
  constexpr auto kKeyBytes = static_cast<py::ssize_t>(sizeof(BlockKey));
  KeyArray array({static_cast<py::ssize_t>(keys.size()), kKeyBytes});
  if (!keys.empty()) std::memcpy(array.mutable_data(), keys.data(), keys.size() * sizeof(BlockKey));
  return array;
}

}  // namespace kvtier::bindings
