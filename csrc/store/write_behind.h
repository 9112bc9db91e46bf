// WriteBehind: carries blocks from host slots (or staging buffers) to disk, parents before
// children, with a bounded backlog. Guarded by the store's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/admission_policy.h"
#include "store/disk_tier.h"
#include "store/host_tier.h"
#include "store/namespace_registry.h"
#include "store/outcome.h"

namespace kvtier::store {

class WriteBehind {
 public:
  using OnEnd = std::function<void(Outcome)>;

  WriteBehind(BlockLife& life, HostTier& host, DiskTier& disk, disk::DiskEngine& engine,
              NamespaceRegistry& namespaces, AdmissionPolicy& admission,
              std::uint64_t backlog_bytes_max);

  /// Queues a block that is resident in host, and before it those of its ancestors that are not on
  /// disk. What finds the backlog full is deferred: it stays evictable and is offered again when
  /// there is room. Returns whether the block itself is on its way or there already.
  bool offer(EntryIndex entry, std::uint64_t request_hash, TimeNs now_ns);
  /// Queues a block without host copy, whose bytes lie in `buffer` until `on_end` (called with the
  /// store's mutex held). kDeclined: no room. kFailed: the device refused.
  void submit_direct(EntryIndex entry, std::span<std::byte> buffer, OnEnd on_end);

  struct Candidate {
    std::uint32_t namespace_index = 0;
    BlockKey key;
    std::uint64_t request_hash = 0;
    BlockUse use;
  };
  /// Whether the policy would let such a child of `parent` (kNoEntry: a root) onto the disk now.
  bool is_admitted(const Candidate& candidate, EntryIndex parent);

  /// Writes the same bytes once more into the slot of a block that is resident on disk; from
  /// `buffer`, as submit_direct, or from its host slot when that is empty.
  void rewrite(EntryIndex entry, std::span<std::byte> buffer, OnEnd on_end);

  /// Starts what can be started.
  void step(TimeNs now_ns);
  /// True when the job was its own.
  bool finish(const disk::DiskResult& result, TimeNs now_ns);

  /// A mark for everything offered so far, deferred blocks included.
  std::uint64_t mark() const { return ticket_counter_; }
  /// Whether everything up to the mark has been written or given up.
  bool is_drained(std::uint64_t mark) const {
    return open_tickets_.empty() || *open_tickets_.begin() > mark;
  }
  /// Gives up what has not been started; returns how many blocks.
  std::size_t drop_backlog();

  std::uint64_t backlog_bytes() const { return backlog_bytes_; }
  std::uint64_t backlog_bytes_max() const { return backlog_bytes_max_; }
  std::size_t num_in_flight() const { return in_flight_.size(); }
  /// Those and what is written and waits for its parent.
  std::size_t num_unfinished() const { return in_flight_.size() + waiting_.size(); }
  bool has_queued() const { return !queue_.empty(); }

 private:
  struct Item {
    EntryIndex entry = kNoEntry;
    std::uint64_t ticket = 0;
    std::span<std::byte> buffer;  // Empty: the host slot.
    OnEnd on_end;
    bool is_retried = false;
    bool is_rewrite = false;  // Of a block that is resident on disk, and stays so.
  };
  struct Deferred {
    EntryIndex entry = kNoEntry;
    BlockKey key;  // Entries are reused: proves that it is still the same block.
    std::uint64_t ticket = 0;
  };

  bool has_room(EntryIndex entry) const;
  void push(Item item);
  bool enqueue(EntryIndex entry, std::uint64_t request_hash, std::uint64_t ticket);
  void defer(EntryIndex entry, std::uint64_t ticket);
  void offer_deferred(TimeNs now_ns);
  bool start(Item& item, bool& is_waiting);
  void write(Item& item);
  bool retry(Item& item);
  void decline_queue();
  void end_detached();
  void complete(Item item);
  void apply(Item item);
  void fail(Item item, Outcome outcome);
  void decline(Item item);
  void end(Item& item, Outcome outcome);
  std::vector<Item> take_waiting_children(EntryIndex parent);
  std::uint64_t slot_bytes_of(EntryIndex entry) const;

  BlockLife& life_;
  BlockIndex& index_;
  HostTier& host_;
  DiskTier& disk_;
  disk::DiskEngine& engine_;
  NamespaceRegistry& namespaces_;
  AdmissionPolicy& admission_;
  const std::uint64_t backlog_bytes_max_;
  std::deque<Item> queue_;
  std::deque<Deferred> deferred_;
  std::unordered_map<disk::DiskJobId, Item> in_flight_;
  std::unordered_map<EntryIndex, Item> waiting_;  // Written, their parents not applied yet.
  std::set<std::uint64_t> open_tickets_;
  std::uint64_t ticket_counter_ = 0;
  std::uint64_t backlog_bytes_ = 0;
  std::uint64_t in_flight_bytes_ = 0;
  std::uint64_t waiting_bytes_ = 0;
};

}  // namespace kvtier::store
