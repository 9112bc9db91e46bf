// SimWorld: simulated clock, disk (Directory + IoEngine) and executor driven from one seed, so that
// the whole store runs deterministically in the calling thread. Not thread-safe: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "io/directory.h"
#include "io/io_engine.h"

namespace kvtier::testing {

/// What may go wrong, as probabilities in [0, 1] per op, drawn from the seed.
struct SimFaults {
  double read_error = 0;            // EIO.
  double write_error = 0;           // EIO.
  double read_flip = 0;             // One bit of the delivered bytes is wrong, silently.
  double write_flip = 0;            // One bit of the stored bytes is wrong, silently.
  double misdirected_read = 0;      // Bytes of another aligned offset of the file, silently.
  double misdirected_write = 0;     // Lands at another aligned offset of the file, silently.
  double short_transfer = 0;        // Status says how far it came; never ok.
  double torn_write = 0;            // Only a prefix of whole sectors is stored, then EIO.
  double sync_error = 0;            // EIO from sync.
  double allocate_unsupported = 0;  // allocate() answers kUnsupported.
  bool is_direct_refused = false;   // EINVAL from every op on a direct descriptor; no draw.
};

struct SimOptions {
  std::uint64_t seed = 1;
  std::uint64_t capacity_bytes = 1ull << 30;  // Beyond: ENOSPC.
  std::uint32_t sector_bytes = 512;
  std::uint32_t file_system_block_bytes = 4096;
  std::uint32_t direct_alignment_bytes = 512;
  TimeNs latency_min_ns = 20 * kNsPerUs;
  TimeNs latency_max_ns = 2 * kNsPerMs;
  double bytes_per_s = 1e9;
  std::uint32_t queue_depth = 8;
};

class SimClock final : public Clock {
 public:
  TimeNs now_ns() override { return now_ns_; }
  void advance_to(TimeNs time_ns) {
    if (time_ns > now_ns_) now_ns_ = time_ns;
  }
  void advance_ns(TimeNs delta_ns) { now_ns_ += delta_ns; }

 private:
  TimeNs now_ns_ = kNsPerS;
};

/// The disk outlives the stores that are opened on it: `make_directory` and `make_io_engine` give
/// each opening its own handle, and `crash` drops all of them.
class SimDisk {
 public:
  SimDisk(SimClock& clock, const SimOptions& options);
  ~SimDisk();

  std::unique_ptr<Directory> make_directory();
  std::unique_ptr<IoEngine> make_io_engine();

  /// Power loss: of what was written since the last sync of each file, each sector is kept, dropped
  /// or (old and new mixed across sectors) torn by the seed; handles made before answer kClosed and
  /// their ops never complete. `keeps_all`: kill -9 instead: everything written stays.
  void crash(bool keeps_all = false);

  SimFaults& faults();
  /// While stalled no op completes and no time is needed to say so.
  void set_stalled(bool is_stalled);
  void set_capacity_bytes(std::uint64_t capacity_bytes);
  /// Test access to stored bytes, for planting faults and as an independent witness.
  std::map<std::string, std::vector<std::byte>>& files();
  std::uint64_t allocated_bytes() const;
  std::uint64_t num_reads() const;
  std::uint64_t num_writes() const;
  std::uint64_t num_direct_refused() const;
  std::uint64_t written_bytes() const;

  /// Time of the next completion (kNeverNs: none); completes what is due now.
  TimeNs next_event_ns() const;
  void run_due();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// Runs the pump inside wait(): pump when woken or due, posted steps in an order drawn from `seed`,
/// else advance the clock to the next event. A wait whose deadline has passed still runs what is
/// due now. A wait without deadline when nothing can happen any more fails a KVTIER_CHECK instead
/// of hanging.
std::unique_ptr<Executor> make_sim_executor(SimClock& clock, SimDisk& disk, std::uint64_t seed = 1);

/// Runs the pump, posted steps and the disk until no op is on the disk (or the disk is stalled), no
/// step waits and the pump was not woken; does not wait for the pump's later timers. False when
/// `limit_ns` of simulated time was not enough. `executor` is a simulated one.
bool run_until_idle(Executor& executor, TimeNs limit_ns = 3600 * kNsPerS);
/// Lets that much simulated time pass, with everything that is due in it.
void run_for_ns(Executor& executor, TimeNs duration_ns);

}  // namespace kvtier::testing
