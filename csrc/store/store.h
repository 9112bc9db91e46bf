// Store: blocks of KV bytes in a host tier and a disk tier behind one index. The only place that
// decides what is where. All public calls are thread-safe; put, get, flush, clear, erase and close
// may block until their deadline, the others do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/executor.h"
#include "base/status.h"
#include "io/directory.h"
#include "io/io_engine.h"
#include "memory/arena.h"
#include "memory/numa_policy.h"
#include "store/block_mover.h"
#include "store/holder.h"
#include "store/job.h"
#include "store/outcome.h"
#include "store/store_options.h"
#include "store/store_stats.h"

namespace kvtier {

/// What the store runs on. The defaults are the real ones; a simulation brings its own. The clock
/// and executor outlive the store.
struct StoreSeams {
  std::shared_ptr<Clock> clock;
  std::shared_ptr<Executor> executor;
  std::unique_ptr<Directory> directory;  // Only with a disk tier.
  std::unique_ptr<IoEngine> io_engine;   // Only with a disk tier.
  std::string io_note;                   // Why it is not the best engine; else empty.
  NumaSystem numa = real_numa_system();
  /// Receives one line for the log; level "info" or "warning". Any thread, no lock held.
  std::function<void(const char* level, const std::string& text)> log;
};

struct NamespaceOptions {
  NamespaceId id;
  std::string description;  // Canonical JSON in one line.
  std::uint64_t block_bytes = 0;
  /// Sizes that add up to block_bytes; empty: one part. Zero-byte parts are allowed.
  std::vector<std::uint64_t> part_bytes;
};

struct LookupResult {
  std::size_t num_blocks = 0;  // Blocks found: the unbroken prefix, or all that are there.
  std::vector<Tier> tiers;     // One a key; kNone where not counted.
};

struct LeaseResult {
  std::uint64_t lease_id = 0;  // 0: nothing is leased.
  LookupResult found;
};

struct PutRequest {
  std::uint32_t namespace_index = 0;
  std::span<const BlockKey> keys;
  /// One address a key, block_bytes long each; read only during the call.
  std::span<const std::byte* const> sources;
  std::optional<BlockKey> parent;
  bool is_chain = true;
  std::uint64_t request_hash = 0;  // Uses with equal non-zero hashes count once for admission.
  TimeNs timeout_ns = 0;
};

struct GetRequest {
  std::uint32_t namespace_index = 0;
  std::span<const BlockKey> keys;
  std::span<std::byte* const> targets;  // One a key, block_bytes long each.
  bool is_prefix = true;
  std::uint64_t request_hash = 0;
  TimeNs timeout_ns = 0;
};

/// A save: as a put whose bytes `mover` brings.
struct SaveRequest {
  std::uint32_t namespace_index = 0;
  std::span<const BlockKey> keys;
  std::shared_ptr<BlockMover> mover;
  std::optional<BlockKey> parent;
  bool is_chain = true;
  std::uint64_t request_hash = 0;
  TimeNs timeout_ns = 0;
};

/// A load: as a get whose bytes `mover` takes.
struct LoadRequest {
  std::uint32_t namespace_index = 0;
  std::span<const BlockKey> keys;
  std::shared_ptr<BlockMover> mover;
  bool is_prefix = true;
  std::uint64_t request_hash = 0;
  TimeNs timeout_ns = 0;
};

/// Memory that slots and buffers are cut from. It stays mapped while the keeper lives.
struct HostMemory {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> keeper;
};

struct FlushResult {
  std::uint64_t durable_blocks = 0;
  std::uint64_t not_kept_blocks = 0;
};

/// Which blocks: of a namespace, if one is named; on disk in these segments, if any are named.
struct EraseFilter {
  std::optional<NamespaceId> namespace_id;
  std::vector<std::uint32_t> segment_ids;
};

struct ClearResult {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t pending_blocks = 0;
};

class Store {
 public:
  /// kConfig (values that cannot be honoured, unusable path), kBusy (directory in use; the message
  /// carries the holder's text), kNoSpace, kIoError.
  static Result<std::shared_ptr<Store>> open(const StoreOptions& options, StoreSeams seams);
  /// With the system's clock, threads and files.
  static Result<std::shared_ptr<Store>> open(
      const StoreOptions& options,
      std::function<void(const char* level, const std::string& text)> log);

  /// Closes without writing the backlog if close() was not called.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Index to use in requests; the same id gives the same index. kConfig: block too large for every
  /// tier, parts that do not add up, too many namespaces. A tier that is too small is logged once.
  Result<std::uint32_t> add_namespace(const NamespaceOptions& options);

  /// max_load_ns: counts no further, in order of the keys, than what could be loaded in that time
  /// by the rates measured lately, behind the reads that are queued. Nothing is cut while a rate is
  /// unknown: at first, until about 5 ms of loads were measured.
  Result<LookupResult> lookup(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                              bool is_prefix, TimeNs max_load_ns = kNeverNs);
  /// owner: for holders(); its first 64 bytes are kept.
  Result<LeaseResult> lease(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                            bool is_prefix, TimeNs ttl_ns, std::string owner = {});
  /// Who keeps blocks from eviction: at most `num_max` leases and as many jobs, the oldest of each.
  std::vector<Holder> holders(std::size_t num_max);
  /// False: unknown, expired or already released.
  bool release(std::uint64_t lease_id);
  /// Time until expiry; 0 when it is over.
  TimeNs lease_expires_in_ns(std::uint64_t lease_id);

  /// Pins the unbroken prefix that is there and returns its length: until unpin, erase, clear or a
  /// failed load each block has a copy that is not evicted, on disk where it is there, else in
  /// host. Counted. What is not on disk yet is offered to it, whatever the admission policy says.
  /// At most a quarter of a tier; the prefix ends before the block that would go beyond, and before
  /// one with 65,535 pins. Survives a restart when a flush or close after it succeeded, and usually
  /// sooner: its table page is written with the next batch of commits.
  Result<std::uint64_t> pin(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  /// Takes one pin from each of these blocks that has one; returns from how many. As durable as
  /// pin.
  Result<std::uint64_t> unpin(std::uint32_t namespace_index, std::span<const BlockKey> keys);

  /// One outcome a key.
  Result<std::vector<Outcome>> put(const PutRequest& request);
  /// Targets of blocks that are not kDone are untouched.
  Result<std::vector<Outcome>> get(const GetRequest& request);
  /// The same as jobs: plan at once, copy in the background. `sources` or `targets` point to memory
  /// that belongs to the job until it has ended; the other spans are copied. `on_end` (may be
  /// empty) is called once, at the job's end, from any thread and with the store's mutex held: it
  /// must not call the store or wait. Do not block. With 4,096 unfinished jobs a new one ends at
  /// once, all kDeclined or kMiss.
  Result<std::shared_ptr<Job>> put_async(const PutRequest& request, std::function<void()> on_end);
  Result<std::shared_ptr<Job>> get_async(const GetRequest& request, std::function<void()> on_end);
  /// Saves and loads between host slots and an engine's memory, as jobs. Moves of blocks that lie
  /// in host (and all of a save) start before the call returns. What the mover holds lasts to the
  /// job's end. A save without a host tier is all kDeclined. A cancelled or late job ends when its
  /// moves have, however long that takes.
  Result<std::shared_ptr<Job>> save_async(const SaveRequest& request, std::function<void()> on_end);
  Result<std::shared_ptr<Job>> load_async(const LoadRequest& request, std::function<void()> on_end);
  /// Blocks until the job has ended. kTimeout: it goes on.
  Status wait_job(const Job& job, TimeNs timeout_ns);
  /// Asks the job to end: kCancelled for blocks that are not done. Of a put, keys whose bytes were
  /// not copied are absent again; nothing else is removed. Does not block.
  Status cancel_job(const Job& job);
  /// Jobs that ended since the last call, each once. Of those that nobody else keeps, the newest
  /// 4,096. Does not block.
  Result<std::vector<std::shared_ptr<Job>>> poll_jobs();
  /// Readable while poll_jobs would return any; the store's, valid as long as it.
  Result<int> job_event_fd();
  /// Promotes blocks from disk to host in the background, behind reads that somebody waits for.
  /// Skips what has no host slot and what goes beyond a quarter of the host tier, all prefetches
  /// taken together. Does not block.
  Status prefetch(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  /// Number of entries removed, descendants included; leased blocks and their ancestors stay.
  /// Pins do not keep a block from it. Durable when it returns ok.
  Result<std::uint64_t> erase(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  /// Removes all blocks that the filter means, with their descendants, as erase does; then gives
  /// the disk's space back.
  Result<std::uint64_t> erase_where(const EraseFilter& filter);

  Result<FlushResult> flush(TimeNs timeout_ns);
  struct ClearResults {
    ClearResult host;
    ClearResult disk;
  };
  /// Ends all leases and pins, also when only one tier is cleared.
  Result<ClearResults> clear(bool is_host, bool is_disk);
  StoreStats stats();
  /// The memory of the host tier's slots, and that of staging buffers: what a mover page-locks.
  Result<std::vector<HostMemory>> host_memory();
  /// Puts what is not taken yet of that memory next to a device, where that is the store's to
  /// choose; see NumaPolicy::place_near(). Before it is page-locked.
  Status place_near(const std::string& pci_address);
  /// The same memory in the same order, for other processes to map. kConfig: the store keeps it to
  /// itself, see is_arena_shared, or has no host tier.
  Result<std::vector<std::shared_ptr<const Arena>>> shared_arenas();
  /// Writes the backlog until the deadline, commits, marks the store clean, frees everything.
  /// Idempotent. Later calls of anything return kClosed.
  Status close(TimeNs timeout_ns);

  /// Holds the bookkeeping against itself; slow, for tests. kInternal names the broken rule.
  Status check_consistency();

  /// In a forked child: gives up descriptors without locks; every call then returns kClosed.
  void abandon_after_fork();
  bool is_abandoned() const;

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier
