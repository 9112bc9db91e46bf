// The block copy op: the host's reference, and the GPU's kernels run on the host.
#include "device/block_copy.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "device/block_copy_conformance.h"
#include "device/cuda_leaf_hash.h"
#include "device/host_block_copy.h"
#include "device/host_device.h"
#include "device/kernels_on_host.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

class HostMemoryWorld : public BlockCopyWorld {
 public:
  std::span<std::byte> make_memory(std::size_t length_bytes) override {
    memory_.push_back(std::make_unique<AlignedBytes>(length_bytes));
    return memory_.back()->span();
  }
  std::span<std::byte> make_page_locked(std::size_t length_bytes) override {
    return make_memory(length_bytes);
  }
  bool is_memory_one() const override { return true; }
  void write(std::span<std::byte> memory, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), memory.begin());
  }
  std::vector<std::byte> read(std::span<const std::byte> memory) override {
    return {memory.begin(), memory.end()};
  }

 private:
  std::vector<std::unique_ptr<AlignedBytes>> memory_;
};

class HostDeviceCopyWorld final : public HostMemoryWorld {
 public:
  void run(const FragmentTable& table, BlockCopy op) override {
    op.table_id = host_.create_fragment_table(table).value();
    REQUIRE(host_.submit_block_copy(lane_, op).is_ok());
    host_.run_due();
    host_.destroy_fragment_table(op.table_id);
  }

 private:
  SimClock clock_;
  HostDevice host_{clock_};
  LaneId lane_ = host_.create_lane(LanePriority::kLoad).value();
};

// The kernels are C++; only the exchange between a warp's threads is the test's own.
class HostKernelWorld final : public HostMemoryWorld {
 public:
  void run(const FragmentTable& table, BlockCopy op) override {
    std::vector<cuda::KernelFragment> fragments;
    for (std::size_t index = 0; index < table.fragments().size(); ++index) {
      const Fragment& fragment = table.fragments()[index];
      fragments.push_back({reinterpret_cast<std::uintptr_t>(fragment.base), fragment.stride_bytes,
                           table.fragment_offsets()[index], fragment.length_bytes});
    }
    std::vector<cuda::KernelPart> parts;
    for (const FragmentTable::Part& part : table.parts()) {
      parts.push_back({part.offset_bytes, part.length_bytes, part.first_leaf, 0});
    }
    cuda::KernelArguments arguments{};
    arguments.fragments = fragments.data();
    arguments.parts = parts.data();
    arguments.digests = reinterpret_cast<unsigned long long*>(op.digests);
    arguments.num_fragments = static_cast<unsigned>(fragments.size());
    arguments.num_parts = static_cast<unsigned>(parts.size());
    arguments.equal_fragment_bytes = static_cast<unsigned>(table.equal_fragment_bytes());
    arguments.leaves_per_block = table.leaves_per_block();
    arguments.first_leaf = op.first_leaf;
    arguments.num_leaves = op.num_leaves;
    arguments.leaves_per_turn = 1 + num_runs_++ % 4;
    std::uint64_t any_bits = table.alignment_bytes();
    for (std::size_t index = 0; index < op.places.size(); ++index) {
      arguments.places[index] = {op.places[index].block_id,
                                 reinterpret_cast<std::uintptr_t>(op.places[index].linear)};
      any_bits |= reinterpret_cast<std::uintptr_t>(op.places[index].linear);
    }
    constexpr const char* kKinds[3] = {"gather", "scatter", "hash"};
    const std::string name = std::string("kvtier_") + kKinds[static_cast<std::size_t>(op.kind)] +
                             (any_bits % 16 == 0  ? "_16"
                              : any_bits % 4 == 0 ? "_4"
                                                  : "_1");
    host_leaf_hash_words() = cuda::make_leaf_hash_words();
    run_host_kernel(find_host_kernel(name), op.num_ctas, arguments);
  }

 private:
  unsigned num_runs_ = 0;
};

TEST_CASE("the host device moves and hashes blocks of every shape") {
  check_block_copy_conformance([] { return std::make_unique<HostDeviceCopyWorld>(); });
}

TEST_CASE("the kernels move and hash blocks of every shape") {
  check_block_copy_conformance([] { return std::make_unique<HostKernelWorld>(); });
}

TEST_CASE("block ids and leaves out of range are refused") {
  SimClock clock;
  HostDevice host(clock);
  const LaneId lane = host.create_lane(LanePriority::kLoad).value();
  const BlockShape shape{"two", {4096, 4096}, {}, 0, 0};
  std::vector<std::byte> memory(shape.memory_bytes(4));
  const FragmentTable table = make_table(shape, memory, 4);
  BlockCopy op;
  op.kind = BlockCopyKind::kHash;
  op.table_id = host.create_fragment_table(table).value();
  op.num_leaves = 2;
  const auto code = [&](std::vector<BlockPlace> places) {
    op.places = places;
    return host.submit_block_copy(lane, op).code();
  };
  CHECK(code({{3, nullptr}}) == StatusCode::kOk);
  CHECK(code({{4, nullptr}}) == StatusCode::kInvalidArgument);
  CHECK(code({{-1, nullptr}}) == StatusCode::kInvalidArgument);
  CHECK(code({}) == StatusCode::kInvalidArgument);
  CHECK(code(std::vector<BlockPlace>(kBlockPlacesMax + 1)) == StatusCode::kInvalidArgument);
  op.num_leaves = 3;
  CHECK(code({{3, nullptr}}) == StatusCode::kInvalidArgument);
  op.num_leaves = 2;
  op.first_leaf = 1;
  CHECK(code({{3, nullptr}}) == StatusCode::kInvalidArgument);
  op.first_leaf = 0;
  host.destroy_fragment_table(op.table_id);
  CHECK(code({{3, nullptr}}) == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier::testing
