// Paged geometry: what engines have is taken, and what cannot be right is refused by name.
#include "layout/paged_geometry.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvtier::testing {
namespace {

using layout::FragmentPlace;
using layout::TensorPlace;

constexpr std::uint64_t kTensorBytes = 1 << 20;

// Addresses that nothing looks behind.
std::byte* address(std::uint64_t value) { return reinterpret_cast<std::byte*>(value); }

std::vector<TensorPlace> make_tensors(std::size_t num_tensors) {
  std::vector<TensorPlace> tensors;
  for (std::size_t index = 0; index < num_tensors; ++index) {
    tensors.push_back({address((index + 1) << 30), kTensorBytes});
  }
  return tensors;
}

Result<FragmentTable> make(const std::vector<TensorPlace>& tensors,
                           const std::vector<FragmentPlace>& fragments,
                           std::vector<std::uint64_t> part_bytes = {}) {
  if (part_bytes.empty()) {
    part_bytes.push_back(0);
    for (const FragmentPlace& fragment : fragments) part_bytes[0] += fragment.fragment_bytes;
  }
  return layout::make_fragment_table(tensors, fragments, part_bytes);
}

FragmentTable accept(const std::vector<TensorPlace>& tensors,
                     const std::vector<FragmentPlace>& fragments) {
  auto table = make(tensors, fragments);
  REQUIRE_MESSAGE(table.is_ok(), table.status().to_string());
  return std::move(table).value();
}

std::string refuse(const std::vector<TensorPlace>& tensors,
                   const std::vector<FragmentPlace>& fragments,
                   const std::vector<std::uint64_t>& part_bytes = {}) {
  const auto table = make(tensors, fragments, part_bytes);
  REQUIRE_FALSE(table.is_ok());
  CHECK(table.status().code() == StatusCode::kInvalidArgument);
  return table.status().message();
}

bool names(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST_CASE("keys and values apart in each layer, for as many blocks as fit") {
  const auto tensors = make_tensors(2);
  // Keys of all blocks fill a tensor's first half, values its second.
  const FragmentTable table = accept(tensors, {{0, 0, 4096, 4096},
                                               {0, kTensorBytes / 2, 4096, 4096},
                                               {1, 0, 4096, 4096},
                                               {1, kTensorBytes / 2, 4096, 4096}});
  CHECK(table.block_bytes() == 4 * 4096);
  // The halves meet where keys beyond the last block would begin.
  CHECK(table.num_blocks() == kTensorBytes / 2 / 4096);
  CHECK(table.fragment_address(1, 3) == tensors[0].base + kTensorBytes / 2 + 3 * 4096);
  CHECK(table.fragment_address(2, 0) == tensors[1].base);
  CHECK(table.equal_fragment_bytes() == 4096);
}

TEST_CASE("keys and values packed side by side in each block") {
  const FragmentTable table = accept(make_tensors(1), {{0, 0, 8192, 4096}, {0, 4096, 8192, 4096}});
  CHECK(table.num_blocks() == kTensorBytes / 8192);
  CHECK(table.leaves_per_block() == 2);
}

TEST_CASE("one tensor across all layers") {
  std::vector<FragmentPlace> layers;
  for (std::uint64_t layer = 0; layer < 28; ++layer) {
    layers.push_back({0, layer * 1024, 28 * 1024, 1024});
  }
  const FragmentTable table = accept(make_tensors(1), layers);
  CHECK(table.num_blocks() == kTensorBytes / (28 * 1024));
  CHECK(table.fragment_address(27, 1) == address(1 << 30) + 28 * 1024 + 27 * 1024);
}

TEST_CASE("a single vector a token, as latent attention keeps it, and layers of unequal size") {
  const FragmentTable latent = accept(make_tensors(1), {{0, 0, 16 * 576 * 2, 16 * 576 * 2}});
  CHECK(latent.block_bytes() == 18432);
  const FragmentTable unequal =
      accept(make_tensors(3), {{0, 0, 4096, 4096}, {1, 0, 528, 528}, {2, 64, 2048, 1000}});
  CHECK(unequal.block_bytes() == 5624);
  CHECK(unequal.equal_fragment_bytes() == 0);
  CHECK(unequal.alignment_bytes() == 8);
  // The tensor whose blocks are largest has room for the fewest.
  CHECK(unequal.num_blocks() == kTensorBytes / 4096);
}

TEST_CASE("fragments out of their tensor, and tensors that are not there, are named") {
  const auto tensors = make_tensors(1);
  CHECK(names(refuse(tensors, {{1, 0, 4096, 4096}}), "tensor_index=1"));
  CHECK(names(refuse(tensors, {{0, 0, 4096, 4096}, {0, kTensorBytes - 1, 4096, 2}}),
              "fragment_index=1"));
  CHECK(names(refuse(tensors, {{0, UINT64_MAX, 4096, 4096}}), "out of its tensor"));
  CHECK(names(refuse(tensors, {{0, 0, 4096, UINT64_MAX}}), "out of its tensor"));
  CHECK(names(refuse({{nullptr, kTensorBytes}}, {{0, 0, 4096, 4096}}), "out of its tensor"));
  CHECK(names(refuse(tensors, {}), "no fragments"));
  CHECK(names(refuse(tensors, std::vector<FragmentPlace>(FragmentTable::kFragmentsMax + 1)),
              "too many fragments"));
  // The last byte of the last block counts, and no block more.
  CHECK(accept(tensors, {{0, kTensorBytes - 4096, 4096, 4096}}).num_blocks() == 1);
}

TEST_CASE("parts that do not add up to the fragments are refused") {
  const auto tensors = make_tensors(1);
  const std::vector<FragmentPlace> fragments = {{0, 0, 4096, 528}};
  CHECK(names(refuse(tensors, fragments, {512}), "do not add up"));
  CHECK(names(refuse(tensors, fragments, {512, 17}), "do not add up"));
  CHECK(make(tensors, fragments, {512, 16}).is_ok());
}

TEST_CASE("fragments that overlap are named, also in two tensors over one memory") {
  const auto tensors = make_tensors(1);
  CHECK(names(refuse(tensors, {{0, 0, 8192, 4096}, {0, 4000, 8192, 4096}}), "fragment_index=1"));
  // One block's values on the next block's keys.
  CHECK(names(refuse(tensors, {{0, 0, 8192, 4096}, {0, 4096, 8192, 4097}}), "overlap"));
  CHECK(names(refuse(tensors, {{0, 0, 4096, 4096}, {0, 0, 4096, 4096}}), "overlap"));
  // Blocks of one fragment.
  CHECK(names(refuse(tensors, {{0, 0, 4000, 4096}}), "overlap"));
  const std::vector<TensorPlace> views = {{address(1 << 30), kTensorBytes},
                                          {address((1 << 30) + 4096), kTensorBytes - 4096}};
  CHECK(make(views, {{0, 0, 8192, 4096}, {1, 0, 8192, 4096}}).is_ok());
  CHECK(names(refuse(views, {{0, 0, 8192, 4096}, {1, 4096, 8192, 4096}}), "overlap"));
}

// Byte by byte, for geometries small enough for it.
bool has_shared_byte(const std::vector<FragmentPlace>& fragments, std::uint64_t num_blocks) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t block = 0; block < num_blocks; ++block) {
    for (const FragmentPlace& fragment : fragments) {
      for (std::uint64_t byte = 0; byte < fragment.fragment_bytes; ++byte) {
        const auto place = fragment.offset_bytes + block * fragment.stride_bytes + byte;
        if (!seen.insert(place).second) return true;
      }
    }
  }
  return false;
}

TEST_CASE("what is taken shares no byte, and what goes at one pace is refused only if it does") {
  constexpr std::uint64_t kSeed = 20260901;
  Random random(kSeed);
  std::size_t num_taken = 0;
  std::size_t num_refused = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const TensorPlace tensor{address(1 << 30), 8 + random.next() % 40};
    const bool is_one_pace = random.next() % 4 != 0;
    const std::uint64_t pace = 1 + random.next() % 12;
    std::vector<FragmentPlace> fragments;
    std::uint64_t num_blocks = UINT64_MAX;
    for (std::uint64_t index = 0; index < 1 + random.next() % 3; ++index) {
      const std::uint64_t length = 1 + random.next() % 5;
      const std::uint64_t stride = is_one_pace ? pace : 1 + random.next() % 12;
      const std::uint64_t offset = random.next() % (tensor.length_bytes - length + 1);
      fragments.push_back({0, offset, stride, length});
      num_blocks = std::min(num_blocks, (tensor.length_bytes - offset - length) / stride + 1);
    }
    const bool is_taken = make({tensor}, fragments).is_ok();
    const bool is_shared = has_shared_byte(fragments, num_blocks);
    ++(is_taken ? num_taken : num_refused);
    CAPTURE(kSeed);
    CAPTURE(turn);
    if (is_taken) REQUIRE_FALSE(is_shared);
    if (!is_taken && is_one_pace) REQUIRE(is_shared);
  }
  CHECK(num_taken > 1000);
  CHECK(num_refused > 1000);
}

}  // namespace
}  // namespace kvtier::testing
