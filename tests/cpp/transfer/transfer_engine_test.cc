// The transfer engine on the host device: right bytes by every method and shape, checksums, bad
// input, a device that is lost.
#include "transfer/transfer_engine.h"

#include <doctest/doctest.h>

#include <thread>

#include "testing/without_leak_check.h"
#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::TransferDirection;
using transfer::TransferJobId;
using transfer::TransferMethod;
using transfer::TransferResult;
using Rows = std::vector<TransferWorld::Row>;

void check_save_and_load(const BlockShape& shape, TransferMethod method, bool is_hashed) {
  INFO("shape: ", shape.name, " method: ", transfer::method_name(method), " hashed: ", is_hashed);
  TransferWorld world(shape);
  const Rows rows = {{3, 5, 1}, {0, 6, 2}, {15, 7, 3}, {7, 0, 4}};
  for (const auto& row : rows) world.write_block(row.block_id, world.payload(row.key));
  const std::vector<std::byte> before = world.memory;
  const TransferJobId saving = world.submit(kSave, rows, method, is_hashed);
  world.settle();
  const TransferResult saved = world.take(saving);
  CHECK_MESSAGE(saved.status.is_ok(), saved.status.to_string());
  CHECK(saved.method == method);
  CHECK(saved.moved_bytes == rows.size() * shape.block_bytes());
  CHECK(saved.undefined_block_ids.empty());
  CHECK(are_equal(world.memory, before));
  std::vector<std::uint64_t> sums;
  std::vector<std::byte> arena(world.arena.size(), kEmpty);
  for (const auto& row : rows) {
    const auto bytes = world.payload(row.key);
    std::copy(bytes.begin(), bytes.end(),
              arena.begin() + static_cast<std::ptrdiff_t>(row.slot_index * shape.block_bytes()));
    const auto of_block = world.checksums_of(row.key);
    if (is_hashed) sums.insert(sums.end(), of_block.begin(), of_block.end());
  }
  CHECK(are_equal(world.arena, arena));
  CHECK(saved.checksums == sums);

  // Back to other places, and nothing else is touched.
  world.memory.assign(world.memory.size(), kEmpty);
  const Rows back = {{1, 5, 1}, {2, 6, 2}, {4, 7, 3}, {12, 0, 4}};
  const TransferJobId loading = world.submit(kLoad, back, method, is_hashed);
  world.settle();
  const TransferResult loaded = world.take(loading);
  CHECK_MESSAGE(loaded.status.is_ok(), loaded.status.to_string());
  CHECK(loaded.checksums.empty());
  TransferWorld other(shape);
  for (const auto& row : back) other.write_block(row.block_id, other.payload(row.key));
  CHECK(are_equal(world.memory, other.memory));
  CHECK(are_equal(world.arena, arena));
}

TEST_CASE("blocks of every shape are saved and loaded by every method") {
  for (const BlockShape& shape : block_shapes()) {
    for (const TransferMethod method : kAllMethods) {
      check_save_and_load(shape, method, true);
      check_save_and_load(shape, method, false);
    }
  }
}

TEST_CASE("a transfer of many chunks and blocks in flight is right") {
  TransferWorld world({"large", {300000, 100000}, {}, 0, 0}, {64, 64, 64 << 10, false});
  world.host.set_copy_delay_ns(1000);
  Rows rows;
  for (std::int64_t index = 0; index < 64; ++index) {
    rows.push_back(
        {index, static_cast<std::uint64_t>(63 - index), static_cast<std::uint64_t>(index) + 1});
    world.write_block(index, world.payload(static_cast<std::uint64_t>(index) + 1));
  }
  const TransferJobId saving = world.submit(kSave, rows, TransferMethod::kStaged);
  world.settle();
  CHECK(world.take(saving).status.is_ok());
  for (const auto& row : rows) {
    REQUIRE(are_equal(world.slot(row.slot_index), world.payload(row.key)));
  }
  world.memory.assign(world.memory.size(), kEmpty);
  const TransferJobId loading = world.submit(kLoad, rows, TransferMethod::kStaged);
  world.settle();
  CHECK(world.take(loading).status.is_ok());
  for (const auto& row : rows)
    REQUIRE(are_equal(world.read_block(row.block_id), world.payload(row.key)));
  CHECK(world.engine->stats().num_chunks > 100);
}

TEST_CASE("I1: a thousand fragments that lie together are one copy") {
  constexpr std::uint64_t kNumFragments = 1000;
  constexpr std::uint64_t kFragmentBytes = 64;
  // Chunks are 64 KiB, and the block has 64,000 bytes: one tensor in place of a thousand.
  TransferWorld world({"whole", {kNumFragments * kFragmentBytes}, {}, 0, 0});
  const layout::TensorPlace tensor{world.memory.data(), world.memory.size()};
  std::vector<layout::FragmentPlace> fragments;
  for (std::uint64_t index = 0; index < kNumFragments; ++index) {
    fragments.push_back(
        {0, index * kFragmentBytes, kNumFragments * kFragmentBytes, kFragmentBytes});
  }
  const std::vector<std::uint64_t> parts = {kNumFragments * kFragmentBytes};
  const auto attached = world.engine->attach({&tensor, 1}, fragments, parts);
  REQUIRE_MESSAGE(attached.is_ok(), attached.status().to_string());
  world.attachment_id = attached.value();
  world.write_block(3, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{3, 5, 1}}, TransferMethod::kCopyEngine, false);
  world.settle();
  CHECK(world.take(job_id).status.is_ok());
  CHECK(are_equal(world.slot(5), world.payload(1)));
  CHECK(world.device.pieces().size() == 1);
}

TEST_CASE("a load names the blocks whose bytes are not what was saved") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world({"parts", {4096, 4096, 100, 924}, {5000, 0, 4216}, 0, 0});
    Rows rows;
    for (std::uint64_t index = 0; index < 6; ++index) {
      rows.push_back({static_cast<std::int64_t>(index + 3), index, index + 1});
      const auto bytes = world.payload(index + 1);
      std::copy(bytes.begin(), bytes.end(), world.slot(index).begin());
    }
    world.slot(1)[0] ^= std::byte{1};
    world.slot(4)[world.shape.block_bytes() - 1] ^= std::byte{128};
    const TransferJobId job_id = world.submit(kLoad, rows, method);
    world.settle();
    const TransferResult result = world.take(job_id);
    CHECK(result.status.code() == StatusCode::kCorrupt);
    CHECK(result.undefined_block_ids == std::vector<std::int64_t>{4, 7});
    CHECK(world.engine->stats().corrupt_blocks == 2);
    // Right bytes under another key are wrong too.
    rows[0].key = 99;
    const auto bytes = world.payload(1);
    std::copy(bytes.begin(), bytes.end(), world.slot(0).begin());
    const TransferJobId other = world.submit(kLoad, {rows[0]}, method);
    world.settle();
    CHECK(world.take(other).status.code() == StatusCode::kCorrupt);
  }
}

TEST_CASE("bad requests are refused by name and nothing is touched") {
  TransferWorld world(kPlainShape);
  const auto message = [&](const Rows& rows) {
    const auto refused = world.try_submit(kSave, rows, TransferMethod::kAuto);
    REQUIRE_FALSE(refused.is_ok());
    CHECK(refused.status().code() == StatusCode::kInvalidArgument);
    return refused.status().message();
  };
  CHECK(message({{0, 0, 1}, {16, 1, 2}}).find("block_id=16") != std::string::npos);
  CHECK(message({{-1, 0, 1}}).find("block_id=-1") != std::string::npos);
  CHECK(message({}).find("no blocks") != std::string::npos);
  transfer::TransferRequest request;
  const std::int64_t block_ids[2] = {0, 1};
  std::byte* slots[2] = {world.slot(0).data(), nullptr};
  request.attachment_id = world.attachment_id;
  request.block_ids = block_ids;
  request.slots = {slots, 1};
  CHECK(world.engine->submit(request).status().code() == StatusCode::kInvalidArgument);
  request.slots = slots;
  CHECK(world.engine->submit(request).status().code() == StatusCode::kInvalidArgument);
  request.attachment_id = 99;
  CHECK(world.engine->submit(request).status().code() == StatusCode::kInvalidArgument);
  const TransferJobId twice = world.submit(kLoad, {{5, 0, 1}, {5, 1, 1}});
  world.settle();
  const TransferResult result = world.take(twice);
  CHECK(result.status.code() == StatusCode::kInvalidArgument);
  CHECK(result.status.message().find("block_id=5") != std::string::npos);
  CHECK(world.memory == std::vector<std::byte>(world.memory.size(), kEmpty));
  CHECK(world.engine->stats().failed_jobs == 1);
}

TEST_CASE("a tensor that was freed is named before anything reads it") {
  TransferWorld world(kPlainShape);
  world.host.forget_memory(world.memory.data() +
                           world.shape.tensor_bytes(8192, world.options.num_blocks));
  const TransferJobId job_id = world.submit(kSave, {{0, 0, 1}});
  world.settle();
  const TransferResult result = world.take(job_id);
  CHECK(result.status.code() == StatusCode::kInvalidArgument);
  CHECK(result.status.message().find("tensor_index=1") != std::string::npos);
  CHECK(world.slot(0)[0] == kEmpty);
}

TEST_CASE("jobs are bounded, and polled results make room") {
  TransferWorld world(kPlainShape);
  for (int index = 0; index < 8; ++index) world.submit(kSave, {{0, 0, 1}});
  const auto ninth = world.try_submit(kSave, {{0, 0, 1}}, TransferMethod::kAuto);
  CHECK(ninth.status().code() == StatusCode::kExhausted);
  CHECK(world.engine->take(1).status().code() == StatusCode::kBusy);
  world.settle();
  std::vector<TransferResult> results;
  world.engine->poll(results);
  CHECK(results.size() == 8);
  world.engine->poll(results);
  CHECK(results.size() == 8);
  CHECK(world.try_submit(kSave, {{0, 0, 1}}, TransferMethod::kAuto).is_ok());
}

TEST_CASE("a device that is lost fails all jobs and every later one") {
  TransferWorld world(kPlainShape);
  world.host.set_copy_delay_ns(kNsPerMs);
  const TransferJobId flying = world.submit(kLoad, {{0, 0, 1}, {1, 1, 2}});
  world.engine->advance();
  const TransferJobId queued = world.submit(kLoad, {{2, 2, 3}});
  world.host.fail_device(Status(StatusCode::kIoError, "device lost"));
  world.settle();
  for (const TransferJobId job_id : {flying, queued}) {
    REQUIRE(world.has_ended(job_id));
    const TransferResult result = world.take(job_id);
    CHECK(result.status.message() == "device lost");
    CHECK_FALSE(result.undefined_block_ids.empty());
  }
  CHECK(world.try_submit(kSave, {{0, 0, 1}}, TransferMethod::kAuto).status().message() ==
        "device lost");
}

TEST_CASE("a copy that fails half-way makes its load undefined") {
  TransferWorld world(kPlainShape);
  world.host.fail_copy_after(0, Status(StatusCode::kIoError, "link error"));
  const TransferJobId job_id = world.submit(kLoad, {{4, 0, 1}}, TransferMethod::kStaged);
  world.settle();
  const TransferResult result = world.take(job_id);
  CHECK(result.status.message() == "link error");
  CHECK(result.undefined_block_ids == std::vector<std::int64_t>{4});
}

TEST_CASE("an attachment is kept while a job uses it") {
  TransferWorld world(kPlainShape);
  world.host.set_copy_delay_ns(kNsPerMs);
  const TransferJobId job_id = world.submit(kSave, {{0, 0, 1}});
  CHECK(world.engine->detach(world.attachment_id).code() == StatusCode::kBusy);
  world.settle();
  CHECK(world.has_ended(job_id));
  CHECK(world.engine->detach(world.attachment_id).is_ok());
  CHECK(world.engine->detach(world.attachment_id).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("closing cancels what waits and says when something is still in flight") {
  // What is in flight for ever keeps its memory.
  const WithoutLeakCheck without_leak_check;
  TransferWorld world(kPlainShape);
  world.host.submit_kernel(TransferWorld::kStream, kNeverNs, [] {});
  const TransferJobId flying = world.submit(kSave, {{0, 0, 1}});
  world.engine->advance();
  const TransferJobId queued = world.submit(kSave, {{1, 1, 2}});
  CHECK_FALSE(world.engine->close(0));
  CHECK(world.has_ended(queued));
  CHECK_FALSE(world.has_ended(flying));
  CHECK(world.try_submit(kSave, {{0, 0, 1}}, TransferMethod::kAuto).status().code() ==
        StatusCode::kClosed);
}

TEST_CASE("what a destroyed engine still has in flight keeps its memory page-locked") {
  const WithoutLeakCheck without_leak_check;
  for (const bool is_busy : {false, true}) {
    TransferWorld world(kPlainShape);
    const std::uint64_t other_bytes = world.host.page_locked_bytes();
    REQUIRE(world.engine->add_host_memory(world.arena).is_ok());
    CHECK(world.host.page_locked_bytes() == other_bytes + world.arena.size());
    if (is_busy) {
      world.host.submit_kernel(TransferWorld::kStream, kNeverNs, [] {});
      world.submit(kLoad, {{0, 0, 1}}, TransferMethod::kZeroCopy, false);
      world.engine->advance();
    }
    world.engine.reset();
    CHECK((world.host.page_locked_bytes() >= world.arena.size()) == is_busy);
  }
}

TEST_CASE("an engine with a thread is closed by several at once") {
  SystemClock clock;
  HostDevice host(clock);
  transfer::TransferOptions options;
  options.is_calibrated = false;
  auto engine = std::move(transfer::TransferEngine::create(host, clock, options)).value();
  std::vector<std::thread> closers;
  for (int index = 0; index < 4; ++index) {
    closers.emplace_back([&] { CHECK(engine->close(clock.now_ns() + kNsPerS)); });
  }
  for (std::thread& closer : closers) closer.join();
}

TEST_CASE("where memory is one, blocks are moved once and no staging is taken") {
  TransferWorld world(kPlainShape, {16, 16, 64 << 10, true});
  CHECK(world.engine->stats().staging_bytes == 0);
  world.write_block(2, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{2, 0, 1}});
  world.settle();
  CHECK(world.take(job_id).method == TransferMethod::kZeroCopy);
  CHECK(are_equal(world.slot(0), world.payload(1)));
  const TransferJobId staged = world.submit(kSave, {{2, 0, 1}}, TransferMethod::kStaged);
  world.settle();
  CHECK(world.take(staged).status.code() == StatusCode::kUnsupported);
}

TEST_CASE("an engine with a thread moves blocks by itself") {
  SystemClock clock;
  HostDevice host(clock);
  transfer::TransferOptions options;
  auto engine = std::move(transfer::TransferEngine::create(host, clock, options)).value();
  std::vector<std::byte> memory = make_payload({1, 0}, 64 << 10);
  std::vector<std::byte> arena(64 << 10);
  const layout::TensorPlace tensor{memory.data(), memory.size()};
  const layout::FragmentPlace fragment{0, 0, 8192, 8192};
  const std::uint64_t block_bytes = 8192;
  transfer::TransferRequest request;
  request.attachment_id = engine->attach({&tensor, 1}, {&fragment, 1}, {&block_bytes, 1}).value();
  std::vector<std::int64_t> block_ids;
  std::vector<std::byte*> slots;
  for (std::int64_t index = 0; index < 8; ++index) {
    block_ids.push_back(index);
    slots.push_back(arena.data() + index * 8192);
  }
  request.block_ids = block_ids;
  request.slots = slots;
  const TransferJobId job_id = engine->submit(request).value();
  CHECK(engine->wait(job_id, clock.now_ns() + 10 * kNsPerS));
  CHECK(engine->take(job_id).value().status.is_ok());
  CHECK(are_equal(arena, memory));
  CHECK(engine->close(clock.now_ns() + 10 * kNsPerS));
}

}  // namespace
}  // namespace kvtier::testing
