// Measures the transfer engine on this machine's GPU against the bare copy engine: a table on
// stdout, and lines of JSON in the file that is named. Usage: kvtier_transfer_probe [FILE [lab]];
// `lab` takes the pipeline apart instead (see lab_rows.h). The limits are measured anew between the
// rows, since they move. For one thread.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "lab_rows.h"
#include "probe_case.h"

namespace kvtier {
namespace {

void probe_sweep(Probe& probe, TransferEngine& engine, Report& report) {
  for (const std::uint64_t fragment_bytes :
       {2 * 1024, 4 * 1024, 8 * 1024, 16 * 1024, 32 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024}) {
    Case large(probe, engine, fragment_bytes, kFragments, 256 * kMiB);
    for (const auto direction : kDirections) {
      for (const auto method : kMethods) {
        for (const bool is_hashed : {true, false}) {
          if (method == TransferMethod::kCopyEngine && fragment_bytes < 16384 && is_hashed)
            continue;
          const std::size_t num_repeats = method == TransferMethod::kCopyEngine ? 2 : 5;
          const double limit = probe.limit(direction);
          const double time_s = large.median_s(direction, method, is_hashed, num_repeats);
          const double rate = static_cast<double>(large.num_bytes()) / time_s / 1e9;
          const double best = std::max(limit, probe.best_limit(direction));
          report.add("sweep",
                     text("\"fragment_bytes\": %lu, \"direction\": \"%s\", \"method\": \"%s\", "
                          "\"used\": \"%s\", \"checksums\": %d, \"gb_per_s\": %.2f, "
                          "\"limit\": %.2f, \"share\": %.3f",
                          fragment_bytes, name_of(direction), method_name(method),
                          method_name(large.used), is_hashed, rate, best, rate / best));
        }
      }
    }
  }
}

void probe_small(Probe& probe, TransferEngine& engine, Report& report) {
  for (const std::uint64_t fragment_bytes : {2048, 8192, 32768, 262144}) {
    for (const std::uint64_t num_blocks : {1, 4, 16, 64}) {
      if (fragment_bytes * num_blocks > 4 * kMiB) continue;
      Case small(probe, engine, fragment_bytes, kFragments,
                 fragment_bytes * kFragments * num_blocks);
      for (const auto direction : kDirections) {
        const double copy_us = 1e6 * probe.copy_s(direction, small.num_bytes());
        for (const auto method : kMethods) {
          for (const bool is_hashed : {true, false}) {
            const double time_s = small.median_s(direction, method, is_hashed, 15);
            report.add("small",
                       text("\"fragment_bytes\": %lu, \"blocks\": %lu, "
                            "\"direction\": \"%s\", \"method\": \"%s\", \"used\": \"%s\", "
                            "\"checksums\": %d, \"us\": %.1f, \"one_copy_us\": %.1f",
                            fragment_bytes, num_blocks, name_of(direction), method_name(method),
                            method_name(small.used), is_hashed, 1e6 * time_s, copy_us));
          }
        }
      }
    }
  }
}

void probe_both(Probe& probe, TransferEngine& engine, Report& report) {
  Case large(probe, engine, 32768, kFragments, 512 * kMiB);
  for (const bool is_hashed : {true, false}) {
    for (const auto method : {TransferMethod::kStaged, TransferMethod::kZeroCopy}) {
      std::vector<double> rates;
      double limit = 0;
      for (int turn = 0; turn < 6; ++turn) {
        limit = std::max(limit, probe.limit_both());
        // A load's own sums are made before the clock runs.
        if (turn == 0) (void)large.finish(large.start(TransferDirection::kLoad, method, is_hashed));
        const TimeNs begin_ns = probe.clock.now_ns();
        const auto loading = large.start(TransferDirection::kLoad, method, is_hashed);
        const auto saving = large.start(TransferDirection::kSave, method, is_hashed);
        (void)large.finish(loading);
        (void)large.finish(saving);
        rates.push_back(2.0 * static_cast<double>(large.num_bytes()) /
                        static_cast<double>(probe.clock.now_ns() - begin_ns));
      }
      report.add("both",
                 text("\"fragment_bytes\": 32768, \"method\": \"%s\", \"checksums\": %d, "
                      "\"gb_per_s\": %.2f, \"limit\": %.2f, \"share\": %.3f",
                      method_name(method), is_hashed, median(rates), limit, median(rates) / limit));
    }
  }
}

void probe_submit(Probe& probe, TransferEngine& engine, Report& report) {
  for (const std::uint64_t fragment_bytes : {1024, 4096, 32768}) {
    Case jobs(probe, engine, fragment_bytes, kFragments, 256 * fragment_bytes * kFragments);
    for (const auto direction : kDirections) {
      std::vector<double> caller_us;
      const TransferStats before = engine.stats();
      for (int turn = 0; turn < 50; ++turn) {
        (void)jobs.finish(jobs.start(direction, TransferMethod::kAuto, true));
        caller_us.push_back(jobs.submit_us);
      }
      const TransferStats after = engine.stats();
      report.add("submit", text("\"blocks\": 256, \"fragment_bytes\": %lu, \"direction\": \"%s\", "
                                "\"caller_us\": %.1f, \"caller_us_max\": %.1f, "
                                "\"engine_us\": %.1f, \"chunks\": %.1f",
                                fragment_bytes, name_of(direction), median(caller_us),
                                *std::max_element(caller_us.begin(), caller_us.end()),
                                static_cast<double>(after.submit_ns - before.submit_ns) / 50e3,
                                static_cast<double>(after.num_chunks - before.num_chunks) / 50));
    }
  }
}

void probe_budgets(Probe& probe, Report& report) {
  for (const std::uint32_t max_ctas : {2, 4, 6, 8, 12, 16}) {
    for (const std::uint64_t chunk_bytes : {4 * kMiB, 8 * kMiB, 16 * kMiB}) {
      if (max_ctas != 8 && chunk_bytes != 8 * kMiB) continue;
      TransferOptions options;
      options.max_ctas = max_ctas;
      options.chunk_bytes = chunk_bytes;
      options.is_calibrated = false;
      const auto engine = probe.make_engine(options);
      for (const std::uint64_t fragment_bytes : {2048, 4096, 16384, 32768}) {
        Case large(probe, *engine, fragment_bytes, kFragments, 256 * kMiB);
        for (const auto direction : kDirections) {
          for (const auto method : {TransferMethod::kStaged, TransferMethod::kZeroCopy}) {
            const double limit = std::max(probe.limit(direction), probe.best_limit(direction));
            const double rate = static_cast<double>(large.num_bytes()) / 1e9 /
                                large.median_s(direction, method, true, 3);
            report.add("budget",
                       text("\"max_ctas\": %u, \"chunk_bytes\": %lu, \"fragment_bytes\": %lu, "
                            "\"direction\": \"%s\", \"method\": \"%s\", \"gb_per_s\": %.2f, "
                            "\"share\": %.3f",
                            max_ctas, chunk_bytes, fragment_bytes, name_of(direction),
                            method_name(method), rate, rate / limit));
          }
        }
      }
    }
  }
}

// A kernel bound by memory, beside nothing, beside large copies and beside the engine.
void probe_harm(Probe& probe, TransferEngine& engine, Report& report) {
  const auto source = probe.bench.make_memory(kMemoryBytes);
  const auto target = probe.bench.make_memory(kMemoryBytes);
  const StreamId stream = probe.bench.make_stream();
  Device& device = probe.bench.device();
  const Event begin = device.create_event(EventUse::kTiming).value();
  const Event end = device.create_event(EventUse::kTiming).value();
  const auto loop_ms = [&] {
    (void)device.record_event(begin, stream);
    for (int turn = 0; turn < 200; ++turn) {
      probe.bench.move_memory(stream, target.data(), source.data(), kMemoryBytes);
    }
    (void)device.record_event(end, stream);
    (void)device.wait_event(end, kNeverNs);
    return static_cast<double>(device.elapsed_ns(begin, end).value()) / 1e6;
  };
  Case large(probe, engine, 32768, kFragments, 512 * kMiB);
  const auto beside = [&](const auto& work) {
    std::atomic<bool> is_over{false};
    std::thread worker([&] {
      while (!is_over.load()) work();
    });
    const double time_ms = loop_ms();
    is_over.store(true);
    worker.join();
    return time_ms;
  };
  std::vector<double> alone, copies, transfers, halves;
  for (int turn = 0; turn < 5; ++turn) {
    alone.push_back(loop_ms());
    copies.push_back(beside([&] {
      for (const auto direction : kDirections) probe.start_copy(direction, 512 * kMiB);
      for (const auto direction : kDirections) (void)probe.finish_copy(direction);
    }));
    transfers.push_back(beside([&] {
      const auto loading = large.start(TransferDirection::kLoad, TransferMethod::kStaged, true);
      const auto saving = large.start(TransferDirection::kSave, TransferMethod::kStaged, true);
      (void)large.finish(loading);
      (void)large.finish(saving);
    }));
  }
  report.add("harm", text("\"alone_ms\": %.2f, \"large_copies_ms\": %.2f, \"engine_ms\": %.2f, "
                          "\"engine_beyond_copies\": %.4f, \"max_ctas\": 8",
                          median(alone), median(copies), median(transfers),
                          median(transfers) / median(copies) - 1));
}

void probe_page_locking(Probe& probe, Report& report) {
  constexpr std::uint64_t kBytes = 4096 * kMiB;
  for (const bool is_shared : {false, true}) {
    void* mapping = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                           MAP_ANONYMOUS | (is_shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    if (mapping == MAP_FAILED) continue;
    auto* memory = static_cast<std::byte*>(mapping);
    (void)::madvise(mapping, kBytes, MADV_HUGEPAGE);
    const TimeNs begin_ns = probe.clock.now_ns();
    std::vector<std::thread> threads;
    for (std::uint64_t share = 0; share < 8; ++share) {
      threads.emplace_back([=] {
        for (std::uint64_t place = 0; place < kBytes / 8; place += 4096) {
          *static_cast<volatile std::byte*>(memory + share * (kBytes / 8) + place) = std::byte{1};
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const TimeNs touched_ns = probe.clock.now_ns();
    const Status locked = probe.bench.device().page_lock({memory, kBytes});
    const TimeNs locked_ns = probe.clock.now_ns();
    const auto rate = [](TimeNs duration_ns) { return 4e9 / static_cast<double>(duration_ns); };
    report.add("page_lock", text("\"shared\": %d, \"ok\": %d, \"touch_gib_per_s\": %.2f, "
                                 "\"lock_gib_per_s\": %.2f, \"ready_gib_per_s\": %.2f",
                                 is_shared, locked.is_ok(), rate(touched_ns - begin_ns),
                                 rate(locked_ns - touched_ns), rate(locked_ns - begin_ns)));
    if (locked.is_ok()) probe.bench.device().page_unlock(memory);
    ::munmap(mapping, kBytes);
  }
}

}  // namespace
}  // namespace kvtier

int main(int num_arguments, char** arguments) {
  using namespace kvtier;
  std::string reason;
  const auto bench = testing::GpuBench::open(reason);
  if (bench == nullptr) {
    std::printf("no GPU: %s\n", reason.c_str());
    return 1;
  }
  Report report(num_arguments > 1 ? arguments[1] : nullptr);
  Probe probe(*bench);
  report.add("device",
             text("\"name\": \"%s\", \"identity\": \"%s\"", bench->device().info().name.c_str(),
                  bench->device().info().identity.c_str()));
  if (num_arguments > 2 && std::string(arguments[2]) == "lab") {
    PipeLab lab(probe);
    lab_calls(probe, report);
    lab_pipes(lab, report);
    lab_timelines(lab, report);
    lab_kernels(probe, lab, report);
    lab_engines(probe, report);
    return 0;
  }
  const TimeNs begin_ns = probe.clock.now_ns();
  const auto engine = probe.make_engine({});
  report.add("calibration",
             text("\"ms\": %.1f", static_cast<double>(probe.clock.now_ns() - begin_ns) / 1e6));
  probe_sweep(probe, *engine, report);
  probe_small(probe, *engine, report);
  probe_both(probe, *engine, report);
  probe_submit(probe, *engine, report);
  probe_harm(probe, *engine, report);
  probe_budgets(probe, report);
  probe_page_locking(probe, report);
  return 0;
}
