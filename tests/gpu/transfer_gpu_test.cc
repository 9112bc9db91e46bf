// The transfer engine on a real GPU: right bytes by every method, ordered after and before the
// engine's streams, cancelling, checksums, calibration.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gpu_bench.h"
#include "testing/temporary_folder.h"
#include "transfer/calibration.h"
#include "transfer/transfer_engine.h"
#include "transfer/transfer_shapes.h"

namespace kvtier::testing {
namespace {

using namespace transfer;

constexpr TimeNs kPatienceNs = 20 * kNsPerS;

/// An engine's tensors in GPU memory and an arena of page-locked slots.
class GpuTransferWorld {
 public:
  GpuTransferWorld(GpuBench& gpu_bench, BlockShape block_shape, std::uint64_t block_count = 8,
                   std::uint64_t slot_shift = 0)
      : bench(gpu_bench),
        shape(std::move(block_shape)),
        num_blocks(block_count),
        memory(bench.make_memory(shape.memory_bytes(num_blocks))),
        arena(bench.make_page_locked(shape.block_bytes() * num_blocks + 64)),
        slot_shift_bytes(slot_shift) {
    TransferOptions options;
    options.is_calibrated = false;
    engine = std::move(TransferEngine::create(bench.device(), clock, options)).value();
    engine->add_page_locked_memory(arena);
    attachment_id = attach_shape(*engine, shape, memory, num_blocks);
    clear();
  }

  void clear() {
    std::fill(arena.begin(), arena.end(), kEmpty);
    bench.write(memory, std::vector<std::byte>(memory.size(), kEmpty));
  }
  FragmentTable table() const { return make_table(shape, memory, num_blocks); }
  std::span<std::byte> slot(std::uint64_t slot_index) const {
    return arena.subspan(slot_shift_bytes + slot_index * shape.block_bytes(), shape.block_bytes());
  }
  std::vector<std::byte> payload(std::int64_t block_id, std::uint64_t generation = 0) const {
    return make_payload({static_cast<std::uint64_t>(block_id) + 1, generation},
                        shape.block_bytes());
  }
  /// The tensors' bytes when every block holds its payload.
  std::vector<std::byte> image(std::uint64_t generation) const {
    std::vector<std::byte> bytes(memory.size(), kEmpty);
    const FragmentTable blocks = table();
    for (std::uint64_t block = 0; block < num_blocks; ++block) {
      const auto block_id = static_cast<std::int64_t>(block);
      const auto block_bytes = payload(block_id, generation);
      for (std::size_t index = 0; index < blocks.fragments().size(); ++index) {
        const auto from =
            block_bytes.begin() + static_cast<std::ptrdiff_t>(blocks.fragment_offsets()[index]);
        std::copy_n(from, blocks.fragments()[index].length_bytes,
                    bytes.begin() + (blocks.fragment_address(index, block_id) - memory.data()));
      }
    }
    return bytes;
  }
  /// Block i and slot num_blocks - 1 - i belong together.
  std::uint64_t slot_of(std::uint64_t block) const { return num_blocks - 1 - block; }
  void fill_slots(std::uint64_t generation) {
    for (std::uint64_t block = 0; block < num_blocks; ++block) {
      const auto bytes = payload(static_cast<std::int64_t>(block), generation);
      std::copy(bytes.begin(), bytes.end(), slot(slot_of(block)).begin());
    }
  }
  std::vector<std::uint64_t> checksums(std::uint64_t generation) const {
    std::vector<std::uint64_t> sums;
    for (std::uint64_t block = 0; block < num_blocks; ++block) {
      const auto bytes = payload(static_cast<std::int64_t>(block), generation);
      append_checksums(shape, bytes, seed_of(block), sums);
    }
    return sums;
  }
  static ChecksumSeed seed_of(std::uint64_t block) {
    ChecksumSeed seed;
    seed.key.bytes[3] = static_cast<std::uint8_t>(block);
    return seed;
  }
  TransferJobId submit(TransferDirection direction, TransferMethod method, StreamId stream,
                       std::uint64_t generation = 0) {
    std::vector<std::int64_t> block_ids;
    std::vector<std::byte*> slots;
    std::vector<ChecksumSeed> seeds;
    for (std::uint64_t block = 0; block < num_blocks; ++block) {
      block_ids.push_back(static_cast<std::int64_t>(block));
      slots.push_back(slot(slot_of(block)).data());
      seeds.push_back(seed_of(block));
    }
    std::vector<std::uint64_t> sums;
    if (direction == TransferDirection::kLoad) sums = checksums(generation);
    TransferRequest request;
    request.direction = direction;
    request.attachment_id = attachment_id;
    request.block_ids = block_ids;
    request.slots = slots;
    request.seeds = seeds;
    request.checksums = sums;
    request.stream = stream;
    request.method = method;
    const auto job_id = engine->submit(request);
    REQUIRE_MESSAGE(job_id.is_ok(), job_id.status().to_string());
    return job_id.value();
  }
  TransferResult finish(TransferJobId job_id) {
    REQUIRE(engine->wait(job_id, clock.now_ns() + kPatienceNs));
    return std::move(engine->take(job_id)).value();
  }
  bool slots_hold(std::uint64_t generation) const {
    for (std::uint64_t block = 0; block < num_blocks; ++block) {
      const auto bytes = payload(static_cast<std::int64_t>(block), generation);
      if (!are_equal(slot(slot_of(block)), bytes)) return false;
    }
    return true;
  }

  GpuBench& bench;
  SystemClock clock;
  const BlockShape shape;
  const std::uint64_t num_blocks;
  const std::span<std::byte> memory;
  const std::span<std::byte> arena;
  const std::uint64_t slot_shift_bytes;
  std::unique_ptr<TransferEngine> engine;
  AttachmentId attachment_id = 0;
};

void check_there_and_back(GpuTransferWorld& world, TransferMethod method) {
  INFO("shape: ", world.shape.name, " method: ", method_name(method));
  world.clear();
  world.bench.write(world.memory, world.image(1));
  const TransferResult saved =
      world.finish(world.submit(TransferDirection::kSave, method, world.bench.make_stream()));
  CHECK_MESSAGE(saved.status.is_ok(), saved.status.to_string());
  CHECK(saved.checksums == world.checksums(1));
  CHECK(world.slots_hold(1));
  CHECK(world.arena.back() == kEmpty);
  world.clear();
  world.fill_slots(2);
  const TransferResult loaded =
      world.finish(world.submit(TransferDirection::kLoad, method, world.bench.make_stream(), 2));
  CHECK_MESSAGE(loaded.status.is_ok(), loaded.status.to_string());
  CHECK(are_equal(world.bench.read(world.memory), world.image(2)));
}

TEST_CASE("the GPU saves and loads blocks of every shape by every method") {
  KVTIER_GPU_OR_SKIP(bench);
  std::vector<BlockShape> shapes = block_shapes();
  shapes.push_back({"28 of 16 KiB", std::vector<std::uint64_t>(28, 16384), {}, 16384, 0});
  shapes.push_back({"4 of a MiB", std::vector<std::uint64_t>(4, 1 << 20), {}, 1 << 20, 0});
  for (const BlockShape& shape : shapes) {
    GpuTransferWorld world(*bench, shape);
    for (const TransferMethod method : kAllMethods) check_there_and_back(world, method);
    GpuTransferWorld unaligned(*bench, shape, 8, 3);
    for (const TransferMethod method : kAllMethods) check_there_and_back(unaligned, method);
  }
}

TEST_CASE("a large transfer of many chunks is right") {
  KVTIER_GPU_OR_SKIP(bench);
  GpuTransferWorld world(*bench, {"28 of 32 KiB", std::vector<std::uint64_t>(28, 32768), {}, 0, 0},
                         40);
  for (const TransferMethod method : kAllMethods) check_there_and_back(world, method);
}

TEST_CASE("a save on any stream waits for the kernel that writes its blocks") {
  KVTIER_GPU_OR_SKIP(bench);
  // Own, legacy default, per-thread default.
  for (const StreamId stream : {bench->make_stream(), StreamId{0}, StreamId{2}}) {
    for (const TransferMethod method : kAllMethods) {
      INFO("stream: ", stream.stream_id, " method: ", method_name(method));
      GpuTransferWorld world(*bench, {"two", {65536, 65536}, {}, 0, 0});
      bench->write(world.memory, world.image(1));
      const auto next = bench->make_memory(world.memory.size());
      bench->write(next, world.image(2));
      bench->copy_late(stream, world.memory.data(), next.data(), next.size());
      const TransferJobId job_id = world.submit(TransferDirection::kSave, method, stream);
      bench->let_pass(20 * kNsPerMs);
      CHECK_FALSE(world.engine->wait(job_id, 0));
      CHECK(world.slot(0)[0] == kEmpty);
      bench->end_late_work();
      const TransferResult result = world.finish(job_id);
      CHECK_MESSAGE(result.status.is_ok(), result.status.to_string());
      CHECK(world.slots_hold(2));
      CHECK(result.checksums == world.checksums(2));
    }
  }
}

TEST_CASE("a load waits for the kernel that still reads, and a stream ordered after it sees it") {
  KVTIER_GPU_OR_SKIP(bench);
  for (const TransferMethod method : kAllMethods) {
    INFO("method: ", method_name(method));
    GpuTransferWorld world(*bench, {"two", {65536, 65536}, {}, 0, 0});
    bench->write(world.memory, world.image(1));
    world.fill_slots(2);
    const auto seen_before = bench->make_memory(world.memory.size());
    const auto seen_after = bench->make_memory(world.memory.size());
    const StreamId stream = bench->make_stream();
    bench->copy_late(stream, seen_before.data(), world.memory.data(), world.memory.size());
    const TransferJobId job_id = world.submit(TransferDirection::kLoad, method, stream, 2);
    const StreamId next = bench->make_stream();
    const Status ordered =
        world.engine->order_stream_after(job_id, next, world.clock.now_ns() + kPatienceNs);
    CHECK_MESSAGE(ordered.is_ok(), ordered.to_string());
    bench->move_memory(next, seen_after.data(), world.memory.data(), world.memory.size());
    bench->let_pass(20 * kNsPerMs);
    CHECK(are_equal(bench->read(world.memory), world.image(1)));
    bench->end_late_work();
    bench->synchronize(next);
    CHECK(are_equal(bench->read(seen_after), world.image(2)));
    CHECK(are_equal(bench->read(seen_before), world.image(1)));
    CHECK(world.finish(job_id).status.is_ok());
  }
}

TEST_CASE("after a cancelled job has ended nobody touches its buffers") {
  KVTIER_GPU_OR_SKIP(bench);
  for (const TransferMethod method : kAllMethods) {
    GpuTransferWorld world(*bench,
                           {"28 of 32 KiB", std::vector<std::uint64_t>(28, 32768), {}, 0, 0}, 60);
    bench->write(world.memory, world.image(1));
    const StreamId stream = bench->make_stream();
    bench->write_late(stream, bench->make_memory(64), std::vector<std::byte>(64));
    const TransferJobId flying = world.submit(TransferDirection::kSave, method, stream);
    const TransferJobId waiting = world.submit(TransferDirection::kSave, method, stream);
    world.engine->cancel(flying);
    world.engine->cancel(waiting);
    CHECK(world.engine->wait(waiting, world.clock.now_ns() + kPatienceNs));
    // Its first chunks are with the device, behind the stream.
    bench->end_late_work();
    REQUIRE(world.engine->wait(flying, world.clock.now_ns() + kPatienceNs));
    std::fill(world.arena.begin(), world.arena.end(), std::byte{0x11});
    bench->let_pass(20 * kNsPerMs);
    CHECK(are_equal(world.arena, std::vector<std::byte>(world.arena.size(), std::byte{0x11})));
    CHECK(world.engine->take(flying).value().status.code() == StatusCode::kCancelled);
    CHECK(world.engine->take(waiting).value().status.code() == StatusCode::kCancelled);
  }
}

TEST_CASE("a load on the GPU names the blocks whose bytes are not what was saved") {
  KVTIER_GPU_OR_SKIP(bench);
  GpuTransferWorld world(*bench, {"parts", {4096, 4096, 100, 924}, {5000, 0, 4216}, 0, 0});
  for (const TransferMethod method : kAllMethods) {
    world.fill_slots(3);
    world.slot(world.slot_of(1))[17] ^= std::byte{4};
    world.slot(world.slot_of(6))[9215] ^= std::byte{1};
    const TransferResult result =
        world.finish(world.submit(TransferDirection::kLoad, method, bench->make_stream(), 3));
    CHECK(result.status.code() == StatusCode::kCorrupt);
    CHECK(result.undefined_block_ids == std::vector<std::int64_t>{1, 6});
  }
}

TEST_CASE("a tensor that was freed is named and the device goes on") {
  KVTIER_GPU_OR_SKIP(bench);
  GpuTransferWorld world(*bench, {"two", {65536, 65536}, {}, 0, 0});
  std::byte* tensor_memory = bench->device().allocate(64 << 20).value();
  const layout::TensorPlace tensor{tensor_memory, 64 << 20};
  const layout::FragmentPlace fragment{0, 0, 4096, 4096};
  const std::uint64_t part_bytes = 4096;
  TransferRequest request;
  request.attachment_id =
      world.engine->attach({&tensor, 1}, {&fragment, 1}, {&part_bytes, 1}).value();
  bench->device().deallocate(tensor_memory);
  const std::int64_t block_id = 3;
  std::byte* slot = world.slot(0).data();
  request.block_ids = {&block_id, 1};
  request.slots = {&slot, 1};
  const TransferResult result = world.finish(world.engine->submit(request).value());
  CHECK(result.status.code() == StatusCode::kInvalidArgument);
  CHECK(result.status.message().find("tensor_index=0") != std::string::npos);
  CHECK(bench->device().failure().is_ok());
  const layout::TensorPlace host{world.arena.data(), 4096};
  CHECK(world.engine->attach({&host, 1}, {&fragment, 1}, {&part_bytes, 1}).status().code() ==
        StatusCode::kInvalidArgument);
  check_there_and_back(world, TransferMethod::kStaged);
}

TEST_CASE("threads that save and load at once get their own bytes") {
  KVTIER_GPU_OR_SKIP(bench);
  const BlockShape shape{"28 of 4 KiB", std::vector<std::uint64_t>(28, 4096), {}, 4096, 0};
  GpuTransferWorld one(*bench, shape, 32);
  GpuTransferWorld other(*bench, shape, 32);
  bench->write(one.memory, one.image(1));
  other.fill_slots(2);
  const StreamId streams[2] = {bench->make_stream(), bench->make_stream()};
  const auto repeat = [](GpuTransferWorld& world, TransferDirection direction, StreamId stream,
                         std::uint64_t generation, std::size_t& num_bad) {
    for (int turn = 0; turn < 60; ++turn) {
      const TransferJobId job_id =
          world.submit(direction, kAllMethods[turn % 3], stream, generation);
      if (!world.finish(job_id).status.is_ok()) ++num_bad;
    }
  };
  std::size_t num_bad[2] = {0, 0};
  std::thread saver(repeat, std::ref(one), TransferDirection::kSave, streams[0], 1,
                    std::ref(num_bad[0]));
  repeat(other, TransferDirection::kLoad, streams[1], 2, num_bad[1]);
  saver.join();
  CHECK(num_bad[0] == 0);
  CHECK(num_bad[1] == 0);
  CHECK(one.slots_hold(1));
  CHECK(are_equal(bench->read(other.memory), other.image(2)));
}

TEST_CASE("the calibration is quick, kept, and made anew when it is damaged") {
  KVTIER_GPU_OR_SKIP(bench);
  const TemporaryFolder folder;
  SystemClock clock;
  TransferOptions options;
  options.calibration_path = folder.path() + "/calibration";
  const auto start = [&] {
    const TimeNs begin_ns = clock.now_ns();
    auto engine = TransferEngine::create(bench->device(), clock, options);
    REQUIRE_MESSAGE(engine.is_ok(), engine.status().to_string());
    CHECK_MESSAGE(engine.value()->note().empty(), engine.value()->note());
    return clock.now_ns() - begin_ns;
  };
  const TimeNs measured_ns = start();
  MESSAGE("calibration took ms: ", measured_ns / kNsPerMs);
  CHECK(measured_ns < 500 * kNsPerMs);
  REQUIRE(std::filesystem::exists(options.calibration_path));
  const auto size = std::filesystem::file_size(options.calibration_path);
  CHECK(start() < measured_ns / 2);
  std::filesystem::resize_file(options.calibration_path, size / 2);
  start();
  CHECK(std::filesystem::file_size(options.calibration_path) > size / 2);
}

}  // namespace
}  // namespace kvtier::testing
