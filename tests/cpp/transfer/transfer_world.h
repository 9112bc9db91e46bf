// A transfer engine over the host device on a simulated clock, with an engine's tensors and an
// arena of slots, driven by the test. For one thread.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "device/device_double.h"
#include "device/host_device.h"
#include "testing/payload.h"
#include "testing/sim_world.h"
#include "transfer/transfer_engine.h"
#include "transfer/transfer_shapes.h"

namespace kvtier::testing {

struct TransferWorldOptions {
  std::uint64_t num_blocks = 16;
  std::uint64_t num_slots = 16;
  std::uint64_t chunk_bytes = 64 << 10;
  bool is_memory_unified = false;
  /// Whether the engine takes the device for a GPU, with memory apart from the host's.
  bool is_gpu = false;
  bool are_saves_gentle = false;
};

class TransferWorld {
 public:
  static constexpr StreamId kStream{41};

  explicit TransferWorld(BlockShape block_shape, const TransferWorldOptions& world_options = {})
      : shape(std::move(block_shape)),
        options(world_options),
        memory(shape.memory_bytes(options.num_blocks), kEmpty),
        arena(shape.block_bytes() * options.num_slots, kEmpty) {
    host.set_memory_unified(options.is_memory_unified);
    device.on_info = [this](DeviceInfo& info) {
      if (options.is_gpu) info.kind = DeviceKind::kCuda;
    };
    transfer::TransferOptions engine_options;
    engine_options.chunk_bytes = options.chunk_bytes;
    engine_options.is_calibrated = false;
    engine_options.has_thread = false;
    engine_options.num_jobs_max = 8;
    engine_options.are_saves_gentle = options.are_saves_gentle;
    auto made = transfer::TransferEngine::create(device, clock, engine_options);
    REQUIRE_MESSAGE(made.is_ok(), made.status().to_string());
    engine = std::move(made).value();
    base_request.stream = kStream;
    attachment_id = attach();
  }

  transfer::AttachmentId attach() {
    return attach_shape(*engine, shape, memory, options.num_blocks);
  }

  FragmentTable table() { return make_table(shape, memory, options.num_blocks); }

  std::span<std::byte> slot(std::uint64_t slot_index) {
    return std::span(arena).subspan(slot_index * shape.block_bytes(), shape.block_bytes());
  }
  std::vector<std::byte> payload(std::uint64_t key) const {
    return make_payload({key, 0}, shape.block_bytes());
  }
  void write_block(std::int64_t block_id, std::span<const std::byte> bytes) {
    const FragmentTable blocks = table();
    for (std::size_t index = 0; index < blocks.fragments().size(); ++index) {
      const auto fragment =
          bytes.subspan(blocks.fragment_offsets()[index], blocks.fragments()[index].length_bytes);
      std::copy(fragment.begin(), fragment.end(), blocks.fragment_address(index, block_id));
    }
  }
  std::vector<std::byte> read_block(std::int64_t block_id) {
    return gather_block(table(), memory, memory.data(), block_id);
  }

  static ChecksumSeed seed_of(std::uint64_t key) {
    ChecksumSeed seed;
    seed.key.bytes[0] = static_cast<std::uint8_t>(key);
    seed.namespace_id.bytes[0] = 7;
    return seed;
  }
  std::vector<std::uint64_t> checksums_of(std::uint64_t key) const {
    std::vector<std::uint64_t> sums;
    append_checksums(shape, payload(key), seed_of(key), sums);
    return sums;
  }

  /// A request over rows of (block id, slot index, key).
  struct Row {
    std::int64_t block_id;
    std::uint64_t slot_index;
    std::uint64_t key;
  };
  Result<transfer::TransferJobId> try_submit(transfer::TransferDirection direction,
                                             const std::vector<Row>& rows,
                                             transfer::TransferMethod method,
                                             bool is_hashed = true) {
    std::vector<std::int64_t> block_ids;
    std::vector<std::byte*> slots;
    std::vector<ChecksumSeed> seeds;
    std::vector<std::uint64_t> checksums;
    for (const Row& row : rows) {
      block_ids.push_back(row.block_id);
      slots.push_back(slot(row.slot_index).data());
      if (!is_hashed) continue;
      seeds.push_back(seed_of(row.key));
      if (direction == transfer::TransferDirection::kSave) continue;
      const auto sums = checksums_of(row.key);
      checksums.insert(checksums.end(), sums.begin(), sums.end());
    }
    transfer::TransferRequest request = base_request;
    request.direction = direction;
    request.attachment_id = attachment_id;
    request.block_ids = block_ids;
    request.slots = slots;
    request.seeds = seeds;
    request.checksums = checksums;
    request.method = method;
    return engine->submit(request);
  }
  transfer::TransferJobId submit(transfer::TransferDirection direction,
                                 const std::vector<Row>& rows,
                                 transfer::TransferMethod method = transfer::TransferMethod::kAuto,
                                 bool is_hashed = true) {
    const auto job_id = try_submit(direction, rows, method, is_hashed);
    REQUIRE_MESSAGE(job_id.is_ok(), job_id.status().to_string());
    return job_id.value();
  }

  /// Lets engine and device work, and time pass, until nothing more can happen.
  void settle() {
    while (true) {
      // More than once: who receives a result may submit the next job.
      for (int turn = 0; turn < 3; ++turn) engine->advance();
      const TimeNs due_ns = host.next_due_ns();
      if (due_ns >= kNeverNs) break;
      clock.advance_to(due_ns);
    }
    engine->advance();
  }
  bool has_ended(transfer::TransferJobId job_id) { return engine->wait(job_id, 0); }
  transfer::TransferResult take(transfer::TransferJobId job_id) {
    auto result = engine->take(job_id);
    REQUIRE_MESSAGE(result.is_ok(), result.status().to_string());
    return std::move(result).value();
  }

  SimClock clock;
  HostDevice host{clock};
  DeviceDouble device{host};  // What the engine has, over the host device.
  const BlockShape shape;
  const TransferWorldOptions options;
  std::vector<std::byte> memory;
  std::vector<std::byte> arena;
  /// What the rows of a request do not say: stream, ready point, who receives the result.
  transfer::TransferRequest base_request;
  std::unique_ptr<transfer::TransferEngine> engine;
  transfer::AttachmentId attachment_id = 0;
};

}  // namespace kvtier::testing
