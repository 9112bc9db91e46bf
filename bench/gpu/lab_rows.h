// The rows of the probe's `lab` mode: what each limits, one experiment a function. For one thread.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "device/cuda_context.h"
#include "pipe_lab.h"

namespace kvtier {

inline const std::vector<TransferDirection> kLabDirections[] = {
    {TransferDirection::kSave},
    {TransferDirection::kLoad},
    {TransferDirection::kLoad, TransferDirection::kSave}};
inline const char* const kLabNames[] = {"D2H", "H2D", "both"};
inline constexpr std::uint64_t kLabBytes = 504 * kMiB;

/// Whether kernels slow down beside copies, and whether digests in host memory do that.
inline void lab_kernels(Probe& probe, PipeLab& lab, Report& report) {
  const std::vector<TransferDirection> none;
  const std::vector<TransferDirection>* const beside[] = {&none, &kLabDirections[0],
                                                          &kLabDirections[1], &kLabDirections[2]};
  const char* const beside_names[] = {"idle", "D2H", "H2D", "both"};
  const char* const kind_names[] = {"gather", "scatter", "hash"};
  for (const auto kind : {BlockCopyKind::kGather, BlockCopyKind::kScatter, BlockCopyKind::kHash}) {
    for (const std::uint32_t num_ctas : {1, 2, 4, 8}) {
      for (const auto digests : {LabDigests::kNone, LabDigests::kHost, LabDigests::kDevice}) {
        if (kind == BlockCopyKind::kHash && digests == LabDigests::kNone) continue;
        std::string fields = text("\"kind\": \"%s\", \"ctas\": %u, \"digests\": \"%s\"",
                                  kind_names[static_cast<int>(kind)], num_ctas, name_of(digests));
        for (std::size_t index = 0; index < 4; ++index) {
          std::vector<double> rates;
          for (int turn = 0; turn < 3; ++turn) {
            for (const auto direction : *beside[index]) probe.start_copy(direction, 512 * kMiB);
            rates.push_back(lab.run_kernel(kind, num_ctas, digests, 16 * kMiB));
            for (const auto direction : *beside[index]) (void)probe.finish_copy(direction);
          }
          fields += text(", \"%s\": %.1f", beside_names[index], median(rates));
        }
        report.add("lab_kernel", fields);
      }
    }
  }
}

inline std::string text_of(const LabVariant& variant) {
  return text(
      "\"chunk_mib\": %lu, \"ctas\": %u, \"slots\": %zu, \"split\": %d, \"ordered\": %d, "
      "\"apart\": %d, \"digests\": \"%s\"",
      variant.chunk_bytes / kMiB, variant.num_ctas, variant.num_slots, variant.is_split,
      variant.is_ordered, variant.is_apart, name_of(variant.digests));
}

inline void lab_pipe(PipeLab& lab, const LabVariant& variant, Report& report) {
  std::string fields = text_of(variant);
  for (std::size_t index = 0; index < 3; ++index) {
    std::vector<double> rates;
    double limit = 0;
    for (int turn = 0; turn < 4; ++turn) {
      limit = std::max(limit, lab.run_copies(kLabDirections[index], kLabBytes));
      const double rate = lab.run(variant, kLabDirections[index], kLabBytes);
      if (turn > 0) rates.push_back(rate);
    }
    fields += text(", \"%s\": %.2f, \"%s_share\": %.3f", kLabNames[index], median(rates),
                   kLabNames[index], median(rates) / limit);
  }
  report.add("lab_pipe", fields);
}

/// One thing changed at a time, from what the engine was (8 MiB, 4 CTAs at once on both lanes) and
/// from what it is.
inline void lab_pipes(PipeLab& lab, Report& report) {
  LabVariant was;
  was.chunk_bytes = 8 * kMiB;
  was.num_ctas = 4;
  was.is_ordered = false;
  const LabVariant is;
  std::vector<LabVariant> variants;
  const auto add = [&](LabVariant variant, const auto& change) {
    change(variant);
    variants.push_back(variant);
  };
  for (const LabVariant& base : {was, is}) {
    add(base, [](LabVariant&) {});
    add(base, [](LabVariant& variant) { variant.digests = LabDigests::kNone; });
    add(base, [](LabVariant& variant) { variant.digests = LabDigests::kDevice; });
    add(base, [](LabVariant& variant) { variant.is_apart = false; });
    add(base, [](LabVariant& variant) { variant.is_split = true; });
    add(base, [](LabVariant& variant) { variant.num_slots = 3; });
    add(base, [](LabVariant& variant) { variant.num_slots = 4; });
    add(base, [](LabVariant& variant) { variant.num_ctas = 0; });
    add(base, [](LabVariant& variant) { variant.num_ctas = variant.num_ctas == 4 ? 8 : 4; });
    add(base, [](LabVariant& variant) { variant.chunk_bytes = 24 * kMiB - variant.chunk_bytes; });
  }
  add(is, [](LabVariant& variant) { variant.num_ctas = 6; });
  add(is, [](LabVariant& variant) { variant.num_ctas = 16; });
  add(is, [](LabVariant& variant) { variant.is_ordered = false; });
  add(is, [](LabVariant& variant) {
    variant.is_split = true;
    variant.num_ctas = 0;
  });
  add(is, [](LabVariant& variant) {
    variant.is_split = true;
    variant.is_apart = false;
    variant.digests = LabDigests::kDevice;
  });
  // What the engine's pipe is now, but for where the digests of loads go.
  add(is, [](LabVariant& variant) {
    variant.is_split = true;
    variant.digests = LabDigests::kDevice;
  });
  add(is, [](LabVariant& variant) {
    variant.is_split = true;
    variant.is_apart = false;
  });
  add(is, [](LabVariant& variant) {
    variant.is_split = true;
    variant.num_ctas = 6;
  });
  for (const LabVariant& variant : variants) lab_pipe(lab, variant, report);
}

/// Where each of some chunks' kernel and copy began and ended, in microseconds.
inline void lab_timelines(PipeLab& lab, Report& report) {
  LabVariant was;
  was.chunk_bytes = 8 * kMiB;
  was.num_ctas = 4;
  was.is_ordered = false;
  for (const LabVariant& variant : {was, LabVariant{}}) {
    std::vector<LabTimes> times[2];
    (void)lab.run(variant, kLabDirections[2], 252 * kMiB, &times);
    for (const auto direction : kDirections) {
      const auto& seen = times[static_cast<std::size_t>(direction)];
      for (std::size_t chunk = 0; chunk < seen.size() && chunk < 14; ++chunk) {
        report.add("lab_time", text("\"chunk_mib\": %lu, \"direction\": \"%s\", \"chunk\": %zu, "
                                    "\"kernel_us\": [%.1f, %.1f], \"copy_us\": [%.1f, %.1f]",
                                    variant.chunk_bytes / kMiB, name_of(direction), chunk,
                                    seen[chunk].kernel_us[0], seen[chunk].kernel_us[1],
                                    seen[chunk].copy_us[0], seen[chunk].copy_us[1]));
      }
    }
  }
}

/// What each call costs this thread, in a row and after a pause.
inline void lab_calls(Probe& probe, Report& report) {
  Device& device = probe.bench.device();
  const LaneId lane = device.create_lane(LanePriority::kLoad).value();
  const Event event = device.create_event().value();
  (void)device.record_lane(lane, event);
  const CopyPiece piece{probe.slots[0].data(), probe.blocks[0].data(), 4096};
  const Fragment fragment{probe.blocks[1].data(), 32768, 32768};
  const std::uint64_t part_bytes = 32768;
  const auto table = FragmentTable::create({fragment}, {&part_bytes, 1}, 1024);
  const std::uint32_t table_id = device.create_fragment_table(table.value()).value();
  std::vector<BlockPlace> places(18, {1, probe.blocks[0].data()});
  BlockCopy op;
  op.table_id = table_id;
  op.places = places;
  op.num_leaves = 8;
  const auto measure = [&](const char* name, const auto& call) {
    std::vector<double> row_us, paused_us;
    for (int turn = 0; turn < 5; ++turn) {
      (void)device.wait_event(event, kNeverNs);
      const TimeNs begin_ns = probe.clock.now_ns();
      for (int index = 0; index < 100; ++index) call();
      row_us.push_back(static_cast<double>(probe.clock.now_ns() - begin_ns) / 100e3);
      (void)device.record_lane(lane, event);
    }
    (void)device.wait_event(event, kNeverNs);
    for (int turn = 0; turn < 30; ++turn) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      const TimeNs begin_ns = probe.clock.now_ns();
      call();
      paused_us.push_back(static_cast<double>(probe.clock.now_ns() - begin_ns) / 1e3);
    }
    report.add("lab_call", text("\"call\": \"%s\", \"in_a_row_us\": %.2f, \"after_pause_us\": %.2f",
                                name, median(row_us), median(paused_us)));
  };
  measure("clock", [&] { (void)probe.clock.now_ns(); });
  measure("failure", [&] { (void)device.failure(); });
  measure("scope",
          [&] { const CudaContextScope scope(probe.bench.driver(), probe.bench.context()); });
  measure("query_event", [&] { (void)device.query_event(event); });
  measure("record_lane", [&] { (void)device.record_lane(lane, event); });
  measure("order_lane_after", [&] { (void)device.order_lane_after(lane, event); });
  measure("submit_copies", [&] { (void)device.submit_copies(lane, {&piece, 1}); });
  measure("submit_block_copy", [&] { (void)device.submit_block_copy(lane, op); });
  measure("identify_memory", [&] { (void)device.identify_memory(probe.blocks[0].data()); });
  measure("record_event", [&] { (void)device.record_event(event, probe.stream); });
  (void)device.wait_event(event, kNeverNs);
  device.destroy_fragment_table(table_id);
  device.destroy_event(event);
  device.destroy_lane(lane);
}

/// The engine with other settings: what its thread makes of the same pipeline.
inline void lab_engines(Probe& probe, Report& report) {
  for (const std::uint64_t chunk_bytes : {8 * kMiB, 16 * kMiB}) {
    for (const std::uint32_t max_ctas : {4, 6, 8}) {
      TransferOptions options;
      options.max_ctas = max_ctas;
      options.chunk_bytes = chunk_bytes;
      options.is_calibrated = false;
      const auto engine = probe.make_engine(options);
      Case large(probe, *engine, 32768, kFragments, 512 * kMiB);
      for (const bool is_hashed : {true, false}) {
        std::vector<double> rates, starts_us;
        double limit = 0;
        (void)large.finish(
            large.start(TransferDirection::kLoad, TransferMethod::kStaged, is_hashed));
        for (int turn = 0; turn < 5; ++turn) {
          limit = std::max(limit, probe.limit_both());
          const TimeNs begin_ns = probe.clock.now_ns();
          const auto loading =
              large.start(TransferDirection::kLoad, TransferMethod::kStaged, is_hashed);
          const auto saving =
              large.start(TransferDirection::kSave, TransferMethod::kStaged, is_hashed);
          starts_us.push_back(static_cast<double>(probe.clock.now_ns() - begin_ns) / 1e3);
          (void)large.finish(loading);
          (void)large.finish(saving);
          rates.push_back(2.0 * static_cast<double>(large.num_bytes()) /
                          static_cast<double>(probe.clock.now_ns() - begin_ns));
        }
        std::string fields = text(
            "\"chunk_mib\": %lu, \"max_ctas\": %u, \"checksums\": %d, \"both\": %.2f, "
            "\"both_share\": %.3f, \"starts_us\": %.1f",
            chunk_bytes / kMiB, max_ctas, is_hashed, median(rates), median(rates) / limit,
            median(starts_us));
        for (const auto direction : kDirections) {
          const double one = std::max(probe.limit(direction), probe.best_limit(direction));
          const TransferStats before = engine->stats();
          const double time_s = large.median_s(direction, TransferMethod::kStaged, is_hashed, 5);
          const TransferStats after = engine->stats();
          fields += text(
              ", \"%s_share\": %.3f, \"%s_engine_us\": %.1f, \"%s_chunks\": %.1f",
              name_of(direction), static_cast<double>(large.num_bytes()) / time_s / 1e9 / one,
              name_of(direction), static_cast<double>(after.submit_ns - before.submit_ns) / 6e3,
              name_of(direction), static_cast<double>(after.num_chunks - before.num_chunks) / 6);
        }
        report.add("lab_engine", fields);
      }
    }
  }
}

}  // namespace kvtier
