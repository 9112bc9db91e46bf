// PipeLab: staged pipelines made of bare device ops, to tell what the device allows from what the
// transfer engine's thread makes of it. Everything is submitted at once; events alone order it. For
// one thread.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "probe_case.h"

namespace kvtier {

enum class LabDigests : std::uint8_t { kNone, kHost, kDevice };
inline const char* name_of(LabDigests digests) {
  return digests == LabDigests::kNone ? "none" : digests == LabDigests::kHost ? "host" : "device";
}

struct LabVariant {
  std::uint64_t chunk_bytes = 16 * kMiB;
  std::uint32_t num_ctas = 8;  // 0: no kernels, copies alone.
  std::size_t num_slots = 2;
  bool is_split = false;   // One lane for kernels and one for copies, instead of one for each slot.
  bool is_ordered = true;  // Each kernel waits for the one before it.
  bool is_apart = true;    // Loads have the greater priority.
  LabDigests digests = LabDigests::kHost;
};

/// When a chunk's kernel and copy began and ended, in microseconds.
struct LabTimes {
  double kernel_us[2];
  double copy_us[2];
};

class PipeLab {
 public:
  static constexpr std::uint64_t kFragmentBytes = 32768;
  static constexpr std::uint64_t kBlockBytes = kFragments * kFragmentBytes;
  static constexpr std::size_t kSlotsMax = 4;

  explicit PipeLab(Probe& probe) : probe_(probe), device_(probe.bench.device()) {
    const std::uint64_t tensor_bytes = kMemoryBytes / kFragments / kFragmentBytes * kFragmentBytes;
    num_places_ = tensor_bytes / kFragmentBytes;
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<Fragment> fragments;
      for (std::uint32_t index = 0; index < kFragments; ++index) {
        fragments.push_back(
            {probe.blocks[side].data() + index * tensor_bytes, kFragmentBytes, kFragmentBytes});
      }
      const std::uint64_t part_bytes = kBlockBytes;
      auto table = FragmentTable::create(fragments, {&part_bytes, 1}, num_places_);
      table_ids_[side] = device_.create_fragment_table(table.value()).value();
      for (auto& staging : staging_[side]) staging = device_.allocate(16 * kMiB).value();
      digests_host_[side] = reinterpret_cast<std::uint64_t*>(
          device_.allocate_page_locked(kSlotsMax * kDigestBytes).value());
      digests_device_[side] =
          reinterpret_cast<std::uint64_t*>(device_.allocate(kSlotsMax * kDigestBytes).value());
    }
  }
  ~PipeLab() {
    for (std::size_t side = 0; side < 2; ++side) {
      device_.destroy_fragment_table(table_ids_[side]);
      for (std::byte* staging : staging_[side]) device_.deallocate(staging);
      device_.deallocate_page_locked(reinterpret_cast<std::byte*>(digests_host_[side]));
      device_.deallocate(reinterpret_cast<std::byte*>(digests_device_[side]));
    }
  }
  PipeLab(const PipeLab&) = delete;
  PipeLab& operator=(const PipeLab&) = delete;

  /// GB/s of all directions together. times: filled in for the chunks of each direction, or null.
  double run(const LabVariant& variant, const std::vector<TransferDirection>& directions,
             std::uint64_t num_bytes, std::vector<LabTimes> (*times)[2] = nullptr) {
    std::vector<Pipe> pipes;
    for (const auto direction : directions) pipes.push_back(open(variant, direction));
    const std::uint64_t per_chunk = variant.chunk_bytes / kBlockBytes;
    const std::uint64_t num_chunks = num_bytes / (per_chunk * kBlockBytes);
    for (Pipe& pipe : pipes) must(device_.record_lane(pipe.copies(0), pipe.begin));
    for (std::uint64_t chunk = 0; chunk < num_chunks; ++chunk) {
      for (Pipe& pipe : pipes) submit(variant, pipe, chunk, per_chunk, times != nullptr);
    }
    for (Pipe& pipe : pipes) {
      for (const LaneId lane : pipe.lanes) {
        must(device_.record_lane(lane, pipe.last));
        must(device_.order_lane_after(pipe.lanes[0], pipe.last));
      }
      must(device_.record_lane(pipe.lanes[0], pipe.end));
    }
    TimeNs longest_ns = 1;
    for (Pipe& pipe : pipes) {
      must(device_.wait_event(pipe.end, kNeverNs));
      longest_ns = std::max(longest_ns, device_.elapsed_ns(pipes[0].begin, pipe.end).value());
    }
    if (times != nullptr) {
      for (Pipe& pipe : pipes) read_times(pipes[0].begin, pipe, *times);
    }
    for (Pipe& pipe : pipes) close(pipe);
    return static_cast<double>(pipes.size() * num_chunks * per_chunk * kBlockBytes) /
           static_cast<double>(longest_ns);
  }

  /// GB/s of one kernel over `num_bytes`, several times in a row.
  double run_kernel(BlockCopyKind kind, std::uint32_t num_ctas, LabDigests digests,
                    std::uint64_t num_bytes) {
    constexpr int kTurns = 4;
    const TransferDirection direction =
        kind == BlockCopyKind::kScatter ? TransferDirection::kLoad : TransferDirection::kSave;
    Pipe pipe = open({}, direction);
    const std::uint64_t per_chunk = num_bytes / kBlockBytes;
    LabVariant variant;
    variant.num_ctas = num_ctas;
    variant.digests = digests;
    must(device_.record_lane(pipe.lanes[0], pipe.begin));
    for (int turn = 0; turn < kTurns; ++turn) {
      submit_kernel(variant, pipe, pipe.lanes[0], kind, static_cast<std::uint64_t>(turn), 0,
                    per_chunk);
    }
    must(device_.record_lane(pipe.lanes[0], pipe.end));
    must(device_.wait_event(pipe.end, kNeverNs));
    const TimeNs elapsed_ns = device_.elapsed_ns(pipe.begin, pipe.end).value();
    close(pipe);
    return static_cast<double>(kTurns * per_chunk * kBlockBytes) /
           static_cast<double>(std::max<TimeNs>(elapsed_ns, 1));
  }

  /// As the pipelines' figure, for one bare copy each way.
  double run_copies(const std::vector<TransferDirection>& directions, std::uint64_t num_bytes) {
    TimeNs longest_ns = 1;
    for (const auto direction : directions) probe_.start_copy(direction, num_bytes);
    for (const auto direction : directions) {
      (void)probe_.finish_copy(direction);
      longest_ns = std::max(longest_ns,
                            device_
                                .elapsed_ns(probe_.begins[static_cast<std::size_t>(directions[0])],
                                            probe_.ends[static_cast<std::size_t>(direction)])
                                .value());
    }
    return static_cast<double>(directions.size() * num_bytes) / static_cast<double>(longest_ns);
  }

 private:
  static constexpr std::uint64_t kDigestBytes = 16 * kMiB / 4096 * 8;

  struct Pipe {
    std::size_t side = 0;
    bool is_save = false;
    bool is_split = false;
    std::vector<LaneId> lanes;
    std::vector<Event> kernel_done;  // By slot.
    std::vector<Event> copy_done;
    std::vector<bool> is_used;
    Event begin, end, last;
    std::size_t last_slot = 0;
    bool has_kernel = false;
    std::vector<Event> marks;  // Four a chunk.

    LaneId kernels(std::size_t slot) const { return lanes[is_split ? 0 : slot]; }
    LaneId copies(std::size_t slot) const { return lanes[is_split ? 1 : slot]; }
  };

  static void must(const Status& status) {
    if (!status.is_ok()) std::printf("FAILED: %s\n", status.message().c_str());
  }

  Pipe open(const LabVariant& variant, TransferDirection direction) {
    Pipe pipe;
    pipe.side = static_cast<std::size_t>(direction);
    pipe.is_save = direction == TransferDirection::kSave;
    pipe.is_split = variant.is_split;
    const auto priority =
        pipe.is_save && variant.is_apart ? LanePriority::kSave : LanePriority::kLoad;
    const std::size_t num_lanes = variant.is_split ? 2 : variant.num_slots;
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      pipe.lanes.push_back(device_.create_lane(priority).value());
    }
    for (std::size_t slot = 0; slot < variant.num_slots; ++slot) {
      pipe.kernel_done.push_back(device_.create_event().value());
      pipe.copy_done.push_back(device_.create_event().value());
      pipe.is_used.push_back(false);
    }
    pipe.begin = device_.create_event(EventUse::kTiming).value();
    pipe.end = device_.create_event(EventUse::kTiming).value();
    pipe.last = device_.create_event().value();
    return pipe;
  }
  void close(Pipe& pipe) {
    for (const LaneId lane : pipe.lanes) device_.destroy_lane(lane);
    for (const auto& events : {pipe.kernel_done, pipe.copy_done, pipe.marks}) {
      for (const Event event : events) device_.destroy_event(event);
    }
    for (const Event event : {pipe.begin, pipe.end, pipe.last}) device_.destroy_event(event);
  }

  void mark(Pipe& pipe, LaneId lane, bool is_timed) {
    if (!is_timed) return;
    pipe.marks.push_back(device_.create_event(EventUse::kTiming).value());
    must(device_.record_lane(lane, pipe.marks.back()));
  }

  void submit(const LabVariant& variant, Pipe& pipe, std::uint64_t chunk, std::uint64_t per_chunk,
              bool is_timed) {
    const std::size_t slot = chunk % variant.num_slots;
    if (pipe.is_save && variant.num_ctas > 0)
      kernel_step(variant, pipe, slot, chunk, per_chunk, is_timed);
    copy_step(variant, pipe, slot, chunk, per_chunk, is_timed);
    if (!pipe.is_save && variant.num_ctas > 0)
      kernel_step(variant, pipe, slot, chunk, per_chunk, is_timed);
    pipe.is_used[slot] = true;
  }

  void kernel_step(const LabVariant& variant, Pipe& pipe, std::size_t slot, std::uint64_t chunk,
                   std::uint64_t per_chunk, bool is_timed) {
    const LaneId lane = pipe.kernels(slot);
    if (pipe.is_split && (!pipe.is_save || pipe.is_used[slot])) {
      must(device_.order_lane_after(lane, pipe.copy_done[slot]));
    }
    if (!pipe.is_split && variant.is_ordered && pipe.has_kernel && pipe.last_slot != slot) {
      must(device_.order_lane_after(lane, pipe.kernel_done[pipe.last_slot]));
    }
    mark(pipe, lane, is_timed);
    const auto kind = pipe.is_save ? BlockCopyKind::kGather : BlockCopyKind::kScatter;
    submit_kernel(variant, pipe, lane, kind, chunk, slot, per_chunk);
    must(device_.record_lane(lane, pipe.kernel_done[slot]));
    mark(pipe, lane, is_timed);
    pipe.has_kernel = true;
    pipe.last_slot = slot;
  }

  void copy_step(const LabVariant& variant, Pipe& pipe, std::size_t slot, std::uint64_t chunk,
                 std::uint64_t per_chunk, bool is_timed) {
    const LaneId lane = pipe.copies(slot);
    if (pipe.is_split && variant.num_ctas > 0 && (pipe.is_save || pipe.is_used[slot])) {
      must(device_.order_lane_after(lane, pipe.kernel_done[slot]));
    }
    mark(pipe, lane, is_timed);
    std::byte* host = probe_.slots[pipe.side].data() + chunk * per_chunk * kBlockBytes;
    std::byte* staging = staging_[pipe.side][slot];
    const CopyPiece piece{pipe.is_save ? staging : host, pipe.is_save ? host : staging,
                          per_chunk * kBlockBytes};
    must(device_.submit_copies(lane, {&piece, 1}));
    if (pipe.is_split) must(device_.record_lane(lane, pipe.copy_done[slot]));
    mark(pipe, lane, is_timed);
  }

  void submit_kernel(const LabVariant& variant, const Pipe& pipe, LaneId lane, BlockCopyKind kind,
                     std::uint64_t chunk, std::size_t slot, std::uint64_t per_chunk) {
    std::vector<BlockPlace> places;
    for (std::uint64_t index = 0; index < per_chunk; ++index) {
      const std::uint64_t block = (chunk * per_chunk + index) * 7919 % num_places_;
      places.push_back(
          {static_cast<std::int64_t>(block), staging_[pipe.side][slot] + index * kBlockBytes});
    }
    BlockCopy op;
    op.kind = kind;
    op.table_id = table_ids_[pipe.side];
    op.places = places;
    op.num_leaves = static_cast<std::uint32_t>(per_chunk * kBlockBytes / 4096);
    if (variant.digests == LabDigests::kHost) op.digests = digests_host_[pipe.side];
    if (variant.digests == LabDigests::kDevice) op.digests = digests_device_[pipe.side];
    if (op.digests != nullptr) op.digests += slot * (kDigestBytes / 8);
    op.num_ctas = variant.num_ctas;
    must(device_.submit_block_copy(lane, op));
  }

  void read_times(Event begin, const Pipe& pipe, std::vector<LabTimes> (&times)[2]) {
    const auto at_us = [&](Event event) {
      return static_cast<double>(device_.elapsed_ns(begin, event).value()) / 1e3;
    };
    for (std::size_t index = 0; index + 3 < pipe.marks.size(); index += 4) {
      const std::size_t kernel = index + (pipe.is_save ? 0 : 2);
      const std::size_t copy = index + (pipe.is_save ? 2 : 0);
      times[pipe.side].push_back({{at_us(pipe.marks[kernel]), at_us(pipe.marks[kernel + 1])},
                                  {at_us(pipe.marks[copy]), at_us(pipe.marks[copy + 1])}});
    }
  }

  Probe& probe_;
  Device& device_;
  std::uint64_t num_places_ = 0;
  std::uint32_t table_ids_[2] = {};
  std::byte* staging_[2][kSlotsMax] = {};
  std::uint64_t* digests_host_[2] = {};
  std::uint64_t* digests_device_[2] = {};
};

}  // namespace kvtier
