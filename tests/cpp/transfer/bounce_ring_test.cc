// Slots that are not page-locked: their bytes go through the engine's own ring, and nothing is
// submitted that could hold its thread.
#include "transfer/bounce_ring.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::BounceRing;
using transfer::TransferJobId;
using transfer::TransferMethod;
using transfer::TransferResult;
using Rows = std::vector<TransferWorld::Row>;

constexpr TransferMethod kBouncedMethods[] = {TransferMethod::kCopyEngine, TransferMethod::kStaged,
                                              TransferMethod::kAuto};
constexpr TransferWorldOptions kGpu{16, 16, 64 << 10, false, true};

TEST_CASE("the ring is taken once, smaller where it must be, and a refusal stays") {
  SimClock clock;
  HostDevice host(clock);
  DeviceDouble device(host);
  std::uint64_t num_asked = 0;
  std::uint64_t num_refused = 2;
  device.on_call = [&](DeviceCall) {
    return ++num_asked <= num_refused ? Status(StatusCode::kExhausted, "no memory") : Status::ok();
  };
  BounceRing ring(device, 8);
  CHECK(ring.num_bytes() == 0);
  REQUIRE(ring.take(16 << 20).is_ok());
  REQUIRE(ring.take(16 << 20).is_ok());
  CHECK(num_asked == 3);
  CHECK(ring.place_bytes() == BounceRing::kPlaceBytesMax / 4);
  CHECK(ring.num_bytes() == 8 * ring.place_bytes());
  CHECK(ring.place(3) == ring.place(0) + 3 * ring.place_bytes());
  // Both directions together stay within their bound.
  static_assert(2 * 8 * BounceRing::kPlaceBytesMax <= 64u << 20);
  num_refused = UINT64_MAX;
  BounceRing none(device, 8);
  CHECK(none.take(16 << 20).message() == "no memory");
  const std::uint64_t num_before = num_asked;
  CHECK(none.take(16 << 20).code() == StatusCode::kExhausted);
  CHECK(num_asked == num_before);
}

bool touches(const TransferWorld& world, const std::byte* address) {
  return address >= world.arena.data() && address < world.arena.data() + world.arena.size();
}

void check_bounced(const BlockShape& shape, TransferMethod method, bool is_hashed) {
  INFO("shape: ", shape.name, " method: ", static_cast<int>(method), " hashed: ", is_hashed);
  TransferWorld world(shape, kGpu);
  world.host.set_copy_delay_ns(1000);
  const Rows rows = {{3, 5, 1}, {0, 6, 2}, {15, 7, 3}, {7, 0, 4}};
  for (const auto& row : rows) world.write_block(row.block_id, world.payload(row.key));
  const TransferJobId saving = world.submit(kSave, rows, method, is_hashed);
  world.settle();
  const TransferResult saved = world.take(saving);
  REQUIRE_MESSAGE(saved.status.is_ok(), saved.status.to_string());
  CHECK(saved.method != TransferMethod::kZeroCopy);
  std::vector<std::byte> arena(world.arena.size(), kEmpty);
  for (const auto& row : rows) {
    const auto bytes = world.payload(row.key);
    std::copy(bytes.begin(), bytes.end(),
              arena.begin() + static_cast<std::ptrdiff_t>(row.slot_index * shape.block_bytes()));
  }
  CHECK(are_equal(world.arena, arena));
  world.memory.assign(world.memory.size(), kEmpty);
  const TransferJobId loading = world.submit(kLoad, rows, method, is_hashed);
  world.settle();
  CHECK(world.take(loading).status.is_ok());
  for (const auto& row : rows) {
    CHECK(are_equal(world.read_block(row.block_id), world.payload(row.key)));
  }
  for (const CopyPiece& piece : world.device.pieces()) {
    CHECK_FALSE((touches(world, piece.source) || touches(world, piece.target)));
  }
  const transfer::TransferStats stats = world.engine->stats();
  CHECK(stats.bounced_bytes == 2 * rows.size() * shape.block_bytes());
  CHECK(stats.ring_bytes > 0);
  CHECK(stats.ring_bytes <= 64u << 20);
  CHECK(world.engine->note().find("not page-locked") != std::string::npos);
}

TEST_CASE("blocks of every shape go through the ring, and the device never sees their slots") {
  for (const BlockShape& shape : block_shapes()) {
    for (const TransferMethod method : kBouncedMethods) {
      check_bounced(shape, method, true);
      check_bounced(shape, method, false);
    }
  }
}

TEST_CASE("a transfer of more chunks than the ring has places is right, cancelled or not") {
  for (const bool is_cancelled : {false, true}) {
    TransferWorld world({"large", {300000, 100000}, {}, 0, 0}, {32, 32, 64 << 10, false, true});
    world.host.set_copy_delay_ns(1000);
    Rows rows;
    for (std::int64_t index = 0; index < 32; ++index) {
      const auto key = static_cast<std::uint64_t>(index) + 1;
      rows.push_back({index, static_cast<std::uint64_t>(31 - index), key});
      world.write_block(index, world.payload(key));
    }
    const TransferJobId saving = world.submit(kSave, rows, TransferMethod::kStaged);
    world.engine->advance();
    if (is_cancelled) world.engine->cancel(saving);
    world.settle();
    const TransferResult result = world.take(saving);
    CHECK(result.status.is_ok() == !is_cancelled);
    const std::vector<std::byte> after = world.arena;
    world.clock.advance_ns(kNsPerS);
    world.settle();
    CHECK(are_equal(world.arena, after));
    for (const auto& row : rows) {
      if (is_cancelled) break;
      REQUIRE(are_equal(world.slot(row.slot_index), world.payload(row.key)));
    }
  }
}

TEST_CASE("a load through the ring names what is not what was saved") {
  TransferWorld world(kPlainShape, kGpu);
  for (std::uint64_t index = 0; index < 3; ++index) {
    const auto bytes = world.payload(index + 1);
    std::copy(bytes.begin(), bytes.end(), world.slot(index).begin());
  }
  world.slot(1)[77] ^= std::byte{1};
  const TransferJobId job_id = world.submit(kLoad, {{4, 0, 1}, {5, 1, 2}, {6, 2, 3}});
  world.settle();
  CHECK(world.take(job_id).undefined_block_ids == std::vector<std::int64_t>{5});
}

TEST_CASE("page-locked slots need no ring") {
  TransferWorld world(kPlainShape, kGpu);
  REQUIRE(world.engine->add_host_memory(world.arena).is_ok());
  world.write_block(2, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{2, 0, 1}});
  world.settle();
  CHECK(world.take(job_id).status.is_ok());
  CHECK(are_equal(world.slot(0), world.payload(1)));
  CHECK(world.engine->stats().ring_bytes == 0);
  CHECK(world.engine->note().empty());
}

// Whether the engine submits something while the stream is still behind.
bool is_begun_early(TransferWorld& world, const Rows& rows, TransferMethod method) {
  world.host.submit_kernel(TransferWorld::kStream, kNsPerMs, [] {});
  const std::uint64_t num_before = world.host.num_lane_orders();
  const TransferJobId job_id = world.submit(kSave, rows, method, false);
  world.engine->advance();
  const bool is_early = world.host.num_lane_orders() > num_before;
  CHECK_FALSE(world.has_ended(job_id));
  world.clock.advance_ns(kNsPerMs);
  world.settle();
  CHECK(world.take(job_id).status.is_ok());
  for (const auto& row : rows) {
    CHECK(are_equal(world.slot(row.slot_index), world.read_block(row.block_id)));
  }
  return is_early;
}

TEST_CASE("a job that waits for its stream is handed over only where no call can be held up") {
  const BlockShape many{"many", std::vector<std::uint64_t>(60, 64), {}, 32, 0};
  Rows rows;
  for (std::int64_t index = 0; index < 10; ++index) {
    rows.push_back({index, static_cast<std::uint64_t>(index), 1});
  }
  const Rows one = {rows[0]};
  const auto copy_engine = TransferMethod::kCopyEngine;
  {
    TransferWorld world(many, kGpu);
    REQUIRE(world.engine->add_host_memory(world.arena).is_ok());
    CHECK(is_begun_early(world, one, copy_engine));
    CHECK(is_begun_early(world, rows, TransferMethod::kStaged));
    CHECK(is_begun_early(world, rows, TransferMethod::kZeroCopy));
    // 600 calls.
    CHECK_FALSE(is_begun_early(world, rows, copy_engine));
  }
  {
    TransferWorld world(many, kGpu);
    CHECK(is_begun_early(world, one, TransferMethod::kStaged));
    CHECK(world.engine->stats().ring_bytes > 0);
  }
  // No ring either: the driver itself would have to wait for the copy.
  TransferWorld world(many, kGpu);
  world.device.on_call = [](DeviceCall call) {
    return call == DeviceCall::kAllocatePageLocked ? Status(StatusCode::kExhausted, "no ring")
                                                   : Status::ok();
  };
  CHECK_FALSE(is_begun_early(world, one, TransferMethod::kStaged));
  CHECK(world.engine->stats().ring_bytes == 0);
  CHECK(world.engine->note().find("no ring") != std::string::npos);
}

TEST_CASE("no copy goes past the border of two page-locked memories or two tensors") {
  // Fragments that fill their tensors, which follow each other as the slots do: all one run.
  TransferWorld world({"adjacent", {4096, 4096}, {}, 0, 0}, {1, 1, 64 << 10, false, true});
  const auto arena = std::span(world.arena);
  world.engine->add_page_locked_memory(arena);
  world.engine->add_page_locked_memory(arena.first(1000));
  world.write_block(0, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{0, 0, 1}}, TransferMethod::kCopyEngine, false);
  world.settle();
  CHECK(world.take(job_id).status.is_ok());
  CHECK(are_equal(world.slot(0), world.payload(1)));
  std::vector<std::uint64_t> lengths;
  for (const CopyPiece& piece : world.device.pieces()) lengths.push_back(piece.length_bytes);
  CHECK(lengths == std::vector<std::uint64_t>{1000, 3096, 4096});
}

TEST_CASE("kernels are not given registered memory that has an address of its own") {
  for (const bool is_reached : {false, true}) {
    TransferWorld world(kPlainShape, kGpu);
    world.device.on_info = [&](DeviceInfo& info) {
      info.kind = DeviceKind::kCuda;
      info.can_kernels_reach_registered = is_reached;
    };
    REQUIRE(world.engine->add_host_memory(world.arena).is_ok());
    world.write_block(2, world.payload(1));
    const TransferJobId zero_copy = world.submit(kSave, {{2, 0, 1}}, TransferMethod::kZeroCopy);
    world.settle();
    CHECK(world.take(zero_copy).status.is_ok() == is_reached);
    const TransferJobId any = world.submit(kSave, {{2, 1, 1}});
    world.settle();
    CHECK(world.take(any).status.is_ok());
    CHECK(are_equal(world.slot(1), world.payload(1)));
  }
}

}  // namespace
}  // namespace kvtier::testing
