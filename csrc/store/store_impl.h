// Store::Impl: the parts of a store and the flows through them. Everything below `mutex_` is
// guarded by it; bytes are copied and checked outside of it, under holds.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/task.h"
#include "disk/disk_engine.h"
#include "disk/store_directory.h"
#include "format/uses_file.h"
#include "store/block_checksums.h"
#include "store/block_life.h"
#include "store/disk_tier.h"
#include "store/flow.h"
#include "store/holder.h"
#include "store/host_tier.h"
#include "store/lease_table.h"
#include "store/live_publisher.h"
#include "store/load_time.h"
#include "store/loader.h"
#include "store/log_limiter.h"
#include "store/namespace_registry.h"
#include "store/recovery.h"
#include "store/staging_pool.h"
#include "store/store.h"
#include "store/write_behind.h"

namespace kvtier {

namespace store {

/// A put's block on its way into the store; other puts of the same key wait for it.
struct Fill {
  bool is_ended = false;
  Outcome outcome = Outcome::kDeclined;
};

/// A move of a save or load; guarded by the store's mutex.
struct MoveUnderWay {
  std::vector<std::size_t> block_indices;
  BlockMover::MoveId move_id = 0;
  bool is_ended = false;
  BlockMoveResult result;
};

}  // namespace store

class Store::Impl {
 public:
  Impl(const StoreOptions& options, StoreSeams seams);
  ~Impl();

  Status open();

  Result<std::uint32_t> add_namespace(const NamespaceOptions& options);
  Result<LookupResult> lookup(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                              bool is_prefix, TimeNs max_load_ns);
  Result<LeaseResult> lease(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                            bool is_prefix, TimeNs ttl_ns, std::string owner);
  std::vector<Holder> holders(std::size_t num_max);
  bool release(std::uint64_t lease_id);
  TimeNs lease_expires_in_ns(std::uint64_t lease_id);
  Result<std::uint64_t> pin(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  Result<std::uint64_t> unpin(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  Result<std::vector<Outcome>> put(const PutRequest& request);
  Result<std::vector<Outcome>> get(const GetRequest& request);
  Result<std::shared_ptr<Job>> put_async(const PutRequest& request, std::function<void()> on_end);
  Result<std::shared_ptr<Job>> get_async(const GetRequest& request, std::function<void()> on_end);
  Result<std::shared_ptr<Job>> save_async(const SaveRequest& request, std::function<void()> on_end);
  Result<std::shared_ptr<Job>> load_async(const LoadRequest& request, std::function<void()> on_end);
  Result<std::vector<HostMemory>> host_memory();
  Status place_near(const std::string& pci_address);
  Result<std::vector<std::shared_ptr<const Arena>>> shared_arenas();
  Status prefetch(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  Status wait_job(const Job& job, TimeNs timeout_ns);
  Status cancel_job(const Job& job);
  Result<std::vector<std::shared_ptr<Job>>> poll_jobs();
  Result<int> job_event_fd();
  Result<std::uint64_t> erase(std::uint32_t namespace_index, std::span<const BlockKey> keys);
  Result<std::uint64_t> erase_where(const EraseFilter& filter);
  Result<FlushResult> flush(TimeNs timeout_ns);
  Result<ClearResults> clear(bool is_host, bool is_disk);
  StoreStats stats();
  Status close(TimeNs timeout_ns);
  Status check_consistency();
  void abandon_after_fork();
  bool is_abandoned() const { return is_abandoned_.load(std::memory_order_acquire); }
  /// Closes. True: a copy that did not end in time may still use this object, which has to stay.
  bool close_for_good();

  /// An invariant broke: from now on the store answers MISS.
  void fail(const std::string& reason);

 private:
  using EntryIndex = store::EntryIndex;
  using Namespace = store::Namespace;
  using Flow = store::Flow;
  using Outcomes = std::vector<Outcome>;
  static constexpr EntryIndex kNoEntry = store::kNoEntry;
  static constexpr store::TierId kHost = store::TierId::kHost;
  static constexpr store::TierId kDisk = store::TierId::kDisk;

  /// Holds the mutex; hands collected log lines over after releasing it.
  class Locked {
   public:
    explicit Locked(Impl& impl) : impl_(impl), lock_(impl.mutex_) {}
    ~Locked() {
      if (!lock_.owns_lock()) lock_.lock();
      impl_.submit_io();
      const bool has_log = !impl_.log_lines_.empty();
      lock_.unlock();
      if (has_log) impl_.hand_over_log();
    }
    std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    Impl& impl_;
    std::unique_lock<std::mutex> lock_;
  };

  // Opening and closing (store_open.cc, store_close.cc).
  Status check_options() const;
  Status open_arenas();
  void warn_of_numa_refusal();
  Status open_directory();
  Status open_disk();
  Status recover_disk(store::RecoveryReport& report);
  Status finish_shrink(const store::RecoveryReport& report);
  Status write_backlog(Locked& locked, TimeNs deadline_ns);
  void stop_background(TimeNs deadline_ns, bool is_quiet);
  void leak_what_the_kernel_holds();
  TimeNs watch_directory(TimeNs now_ns);
  TimeNs restart_directory(TimeNs now_ns);
  void log(const char* level, std::string text);
  void hand_over_log();

  // Shared by the calls.
  Status check_open() const;
  Result<const Namespace*> find_namespace(std::uint32_t namespace_index) const;
  Result<const Namespace*> begin_call(std::uint32_t namespace_index);
  std::vector<std::pair<EntryIndex, Tier>> resolve(std::uint32_t namespace_index,
                                                   std::span<const BlockKey> keys,
                                                   bool is_prefix) const;
  template <typename Visit>
  void visit_found(std::uint32_t namespace_index, std::span<const BlockKey> keys, bool is_prefix,
                   const Visit& visit) const;
  store::LoadRates load_rates() const;
  /// Of every block that is put or saved; constant, unlike whether its namespace has a disk class.
  bool makes_checksums() const { return options_.has_checksum || disk_ != nullptr; }
  std::uint64_t slot_alignment(std::uint64_t block_bytes) const;
  /// Waits for `is_done`, which is looked at with the mutex held; false: the deadline came first.
  /// close() cuts every wait short.
  bool wait(Locked& locked, const std::function<bool()>& is_done, TimeNs deadline_ns);
  /// Starts the disk jobs that were planned; before waiting and before leaving the mutex.
  void submit_io() {
    if (engine_) engine_->submit();
  }
  void changed() {
    notify_waiters();
    seams_.executor->wake();
  }
  void notify_waiters() {
    is_changed_ = true;
    seams_.executor->notify();
  }
  /// As changed(), where the pump has something to do only if jobs wait.
  void changed_for_waiters() {
    notify_waiters();
    if (!suspended_jobs_.empty()) seams_.executor->wake();
  }
  /// Runs `task` where blocking is allowed and waits for it; tasks of one store run one at a time.
  /// kTimeout: it goes on, and later ones wait for it.
  Status run_task(Locked& locked, TimeNs deadline_ns, std::function<Status()> task);
  void note_failure(const std::string& reason);
  Status place_namespace(Namespace& added);
  void save_namespace(std::uint32_t namespace_index, Locked& locked);
  Status charge_namespaces();

  // Pins (store_pins.cc).
  bool has_room_for_pin(EntryIndex entry) const;

  // put (store_put.cc).
  struct PutBlock;
  struct PutCall;
  Task<Outcomes> run_put(PutRequest request, const Namespace& space, BlockMover* mover, Flow& flow);
  void plan_put(PutCall& call);
  PutBlock plan_block(PutCall& call, std::size_t i, EntryIndex parent);
  PutBlock plan_new_block(PutCall& call, std::size_t i, EntryIndex parent);
  bool can_renew(const Namespace& space, EntryIndex entry);
  Task<void> fill_host_blocks(PutCall& call, Flow& flow);
  void copy_to_host(PutCall& call, std::size_t first, std::size_t end, Flow& flow);
  void apply_host_block(PutCall& call, std::size_t i, Outcome early_outcome);
  void apply_renewal(PutCall& call, std::size_t i);
  void give_up_host_blocks(PutCall& call, std::size_t first, Outcome outcome);
  bool is_parent_settled(EntryIndex entry) const;
  void end_fill(PutBlock& block, Outcome outcome);
  void finish_put(PutCall& call);

  // put without a host slot (store_put_disk.cc).
  Task<void> fill_disk_blocks(PutCall& call, Flow& flow);
  bool is_given_up(PutCall& call, std::size_t i, const Flow& flow);
  void tell_pump(PutCall& call);
  using StagingBuffer = std::optional<std::span<std::byte>>;
  Task<StagingBuffer> take_window_buffer(PutCall& call, std::size_t i, Flow& flow);
  StagingBuffer try_window_buffer(PutCall& call, std::size_t i);
  void note_in_window(PutCall& call, std::size_t i);
  bool has_window_room(const PutCall& call) const;
  bool is_parent_coming(const PutCall& call, std::size_t i) const;
  Task<void> end_disk_blocks(PutCall& call, Flow& flow);
  void give_up_disk_block(PutBlock& block, Outcome outcome);
  void fill_disk_block(PutCall& call, std::size_t i, std::span<std::byte> buffer, Flow& flow);
  void submit_disk_block(PutCall& call, std::size_t i, std::span<std::byte> buffer);
  Task<StagingBuffer> reserve_staging(std::uint64_t num_bytes, bool is_holding, TimeNs deadline_ns,
                                      Flow& flow);

  // Saves: puts whose bytes a mover brings (store_save.cc).
  Task<void> move_to_host_blocks(PutCall& call, BlockMover& mover, Flow& flow);
  bool plan_move(PutCall& call, BlockMove& move);
  void add_to_move(PutCall& call, std::size_t i, std::byte* target, BlockMove& move) const;
  static void take_checksums(PutCall& call, const store::MoveUnderWay& move);
  Task<void> move_to_disk_blocks(PutCall& call, BlockMover& mover, Flow& flow);
  Task<void> move_batch(PutCall& call, BlockMover& mover, BlockMove& batch, Flow& flow);
  void give_up_batch(PutCall& call, std::span<const std::size_t> indices, Outcome outcome);
  static Outcome outcome_of_failed(const Status& status, Outcome refused, const Flow& flow);
  std::shared_ptr<store::MoveUnderWay> start_move(BlockMover& mover, BlockMove move, Flow& flow);
  void settle_move(store::MoveUnderWay& move, BlockMoveResult result, Flow& flow);
  Task<void> end_move(store::MoveUnderWay& move, BlockMover& mover, TimeNs deadline_ns, Flow& flow);

  // Loads: gets whose bytes a mover takes (store_load.cc).
  struct LoadCall;
  Task<Outcomes> run_load(GetRequest request, const Namespace& space, BlockMover& mover,
                          std::vector<std::size_t>& undefined_indices, Flow& flow);
  Task<Outcome> bring_to_memory(LoadCall& call, std::size_t i, Flow& flow);
  void start_load_move(LoadCall& call, Flow& flow);
  Task<void> end_oldest_move(LoadCall& call, Flow& flow);
  Task<void> end_some_moves(LoadCall& call, std::size_t num_moves_max, Flow& flow);
  void give_up_ready(LoadCall& call, Outcome outcome);
  void apply_load_move(LoadCall& call, const store::MoveUnderWay& move, Flow& flow);
  void settle_wrong_block(LoadCall& call, std::size_t i, Flow& flow);
  void cut_prefix(LoadCall& call);

  // Uses and policies (store_uses.cc).
  std::vector<store::BlockUse> note_uses(std::uint32_t namespace_index, EntryIndex above,
                                         std::span<const BlockKey> keys, std::uint64_t request_hash,
                                         bool is_chain);
  void save_uses(Locked& locked, TimeNs deadline_ns);
  Status remove_uses(Locked& locked, TimeNs deadline_ns);
  void choose_policies();
  void prefault(const Locked&);
  void warn_of_small_tier();
  void warn_of_useless_disk();

  // get (store_get.cc).
  struct GetCall;
  Task<Outcomes> run_get(GetRequest request, const Namespace& space, Flow& flow);
  void plan_get(GetCall& call);
  void issue_loads(GetCall& call);
  bool start_load(GetCall& call, std::size_t i, std::uint64_t ticket);
  std::size_t deliver_from_host(GetCall& call, std::size_t first, std::size_t limit, Flow& flow);
  Task<Outcome> deliver_from_disk(GetCall& call, std::size_t i, Flow& flow);
  Task<bool> reserve_buffer(GetCall& call, std::size_t i, Flow& flow);
  void verify(store::Load& load, const Namespace& space, const BlockKey& key, Flow& flow);
  bool is_settled(const store::Load& load) const;
  void drop_load(GetCall& call, std::size_t i);
  void finish_get(GetCall& call);

  // prefetch (store_prefetch.cc).
  struct PrefetchCall;
  Task<Outcomes> run_prefetch(std::span<const BlockKey> keys, std::uint32_t namespace_index,
                              TimeNs deadline_ns, Flow& flow);
  bool start_prefetch(PrefetchCall& call, const BlockKey& key);
  void finish_prefetch(PrefetchCall& call, Flow& flow);

  // Who drives the flows (store_jobs.cc). Shared only because the type is incomplete here.
  struct RunningJob;
  Outcomes drive(Flow& flow, Task<Outcomes> task, Locked& locked, LatencyStats& latency);
  std::shared_ptr<RunningJob> make_job(std::span<const BlockKey> keys, Job::Kind kind,
                                       StepPriority priority,
                                       std::shared_ptr<BlockMover> mover = nullptr);
  std::shared_ptr<Job> start_job(std::shared_ptr<RunningJob> run, Locked& locked);
  void step_job(RunningJob& run);
  void advance_job(RunningJob& run, Locked& locked);
  void suspend(RunningJob& run);
  bool is_wait_over(Flow& flow);
  void post_job(RunningJob& run);
  void break_job(RunningJob& run, const std::string& reason);
  Task<Outcomes> outlast_moves(std::size_t num_blocks, Flow& flow);
  void end_job(RunningJob& run, Status status, Outcomes outcomes);
  void list_job(std::shared_ptr<Job> job);
  TimeNs resume_jobs(TimeNs now_ns);
  enum class JobChoice : std::uint8_t { kLoads, kAll };
  void cancel_jobs(JobChoice choice);
  void release_order_waits();
  void fill_job_stats(JobStats& stats) const;
  LatencyStats& latency_of(Job::Kind kind);

  // Maintenance (store_maintain.cc).
  Status make_removals_durable(Locked& locked, TimeNs deadline_ns);
  Status commit_and_sync(Locked& locked, TimeNs deadline_ns);
  // Erasing (store_erase.cc).
  using EntrySet = std::unordered_set<EntryIndex>;
  Result<std::uint64_t> erase_entries(const EntrySet& meant, Locked& locked, TimeNs deadline_ns);
  std::vector<EntryIndex> find_tops(const EntrySet& meant) const;
  bool is_meant(const store::BlockEntry& block, const EraseFilter& filter) const;
  void drop_tier_copies(store::TierId tier, ClearResult& result);
  bool can_stand_without(EntryIndex entry, store::TierId tier) const;
  StoreStats collect_stats();
  void fill_disk_stats(TierStats& stats);

  // Self-check (store_consistency.cc).
  Status check_entry(EntryIndex entry);
  Status check_slots(store::TierSpace& space);
  Status check_pins();

  // What others are told (store_live.cc).
  std::vector<Holder> collect_holders(std::size_t num_max) const;
  TimeNs publish(TimeNs now_ns);
  LiveState live_state(TimeNs now_ns);
  void tell_end(Locked& locked, TimeNs deadline_ns);

  // Background (store_pump.cc).
  TimeNs pump();
  void finish_results(TimeNs now_ns);
  void note_direct_lost();

  // Constant after open().
  const StoreOptions options_;
  StoreSeams seams_;
  std::uint32_t alignment_bytes_ = 4096;  // Of slots of 4 KiB and more.
  std::uint32_t small_alignment_bytes_ = 512;

  // Guarded by mutex_.
  std::mutex mutex_;
  disk::DirectProbe direct_probe_;
  std::unique_ptr<disk::StoreDirectory> store_directory_;
  std::unique_ptr<disk::DiskEngine> engine_;
  store::BlockIndex index_;
  store::TierSpace host_space_;
  store::TierSpace disk_space_;
  store::ReuseHistory history_;
  store::BlockLife life_;
  store::NamespaceRegistry namespaces_;
  store::LeaseTable leases_;
  std::unique_ptr<store::AdmissionPolicy> admission_;
  std::optional<NumaPolicy> numa_;  // There once the arenas are.
  std::unique_ptr<store::HostTier> host_;
  std::unique_ptr<store::StagingPool> staging_;
  std::unique_ptr<store::DiskTier> disk_;
  std::unique_ptr<store::WriteBehind> writes_;
  std::unique_ptr<store::Loader> loader_;
  std::unique_ptr<store::LivePublisher> publisher_;  // Only where the state is told to others.
  store::RateMeter host_copies_;
  std::unordered_map<EntryIndex, std::shared_ptr<store::Fill>> fills_;
  std::unordered_map<disk::DiskJobId, std::function<void(const Status&)>> tasks_;
  std::vector<std::pair<std::string, std::string>> log_lines_;
  store::LogLimiter log_limiter_;
  StoreStats stats_;
  std::unordered_map<std::uint64_t, std::shared_ptr<RunningJob>> jobs_;  // Not ended, by id.
  std::vector<RunningJob*> suspended_jobs_;                              // In order of suspension.
  std::deque<std::shared_ptr<Job>> listed_jobs_;                         // Ended, for poll.
  std::size_t listed_jobs_max_ = 0;  // Beyond it those that nobody else keeps are dropped.
  std::uint64_t job_id_next_ = 1;
  TimeNs next_job_ns_ = kNeverNs;          // The first deadline of a suspended job.
  std::uint64_t prefetch_bytes_ = 0;       // Asked for and not done.
  std::uint64_t prefetch_load_bytes_ = 0;  // Of loads that were started and are not checked.
  int job_event_fd_ = -1;    // Readable while listed_jobs_ has any; made when first asked for.
  bool is_changed_ = false;  // Since the suspended jobs were looked at.
  std::uint32_t num_hurried_ = 0;  // Calls that wait for commits.
  std::uint32_t num_syncing_ = 0;  // Calls that wait for durability.
  std::uint32_t num_calls_ = 0;    // put, get and jobs under way; close() waits for them.
  std::uint32_t num_moves_ = 0;    // Of saves and loads, in the hands of a mover.
  std::uint32_t num_waiting_ = 0;  // Calls inside wait().
  bool is_cut_short_ = false;      // Nobody waits any more.
  bool is_warned_useless_ = false;
  bool is_open_ = false;
  bool is_closing_ = false;
  bool is_failed_ = false;
  bool is_stuck_ = false;
  bool is_task_running_ = false;
  bool is_watching_ = false;        // The presence of the directory is being checked.
  bool is_directory_lost_ = false;  // Gone; started anew as soon as no job runs.
  TimeNs watch_ns_ = 0;
  std::uint64_t uses_bytes_max_ = 0;  // Of a uses file; room for two is charged.
  bool has_uses_file_ = false;

  // Release when the flag is set in the child, acquire by its calls; no mutex may be taken there.
  std::atomic<bool> is_abandoned_{false};
};

}  // namespace kvtier
