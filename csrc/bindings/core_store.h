// CoreStore: what Python holds of a store. Its members are guarded by the GIL; the calls release
// it.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/buffer_keeper.h"
#include "bindings/log_queue.h"
#include "bindings/paged_arguments.h"
#include "memory/arena_handover.h"
#include "paged/paged_device.h"
#include "paged/plan_table.h"
#include "store/store.h"

namespace kvtier::paged {
class PagedMover;
class PlannedMover;
}  // namespace kvtier::paged

namespace kvtier::bindings {

using KeyArray = pybind11::array_t<std::uint8_t, pybind11::array::c_style>;
/// (namespace_id, part_bytes, num_ranks): who carries out the plans of a save or load.
using PlannedRanks = std::tuple<pybind11::bytes, std::vector<std::uint64_t>, std::uint32_t>;
using AddressArray = pybind11::array_t<std::uint64_t, pybind11::array::c_style>;

class CoreAttachment;
class CoreJob;

class CoreStore {
 public:
  /// Opens the store; called without the GIL.
  using Open = std::function<Result<std::shared_ptr<Store>>(
      const StoreOptions& options, std::function<void(const char*, const std::string&)> log)>;

  CoreStore(const pybind11::dict& options, pybind11::object log, const Open& open);
  ~CoreStore();
  CoreStore(const CoreStore&) = delete;
  CoreStore& operator=(const CoreStore&) = delete;

  std::uint32_t add_namespace(const pybind11::bytes& id, const std::string& description,
                              std::uint64_t block_bytes, std::vector<std::uint64_t> part_bytes);
  pybind11::tuple lookup(std::uint32_t namespace_index, const pybind11::array& keys, bool prefix,
                         double max_load_s);
  pybind11::tuple lease(std::uint32_t namespace_index, const pybind11::array& keys, bool prefix,
                        double ttl_s, std::string owner);
  bool release(std::uint64_t lease_id);
  double lease_expires_in_s(std::uint64_t lease_id);
  KeyArray put(std::uint32_t namespace_index, const KeyArray& keys, const AddressArray& addresses,
               const std::optional<pybind11::bytes>& parent, bool chain, std::uint64_t request_hash,
               double timeout_s);
  KeyArray get(std::uint32_t namespace_index, const KeyArray& keys, const AddressArray& addresses,
               bool prefix, std::uint64_t request_hash, double timeout_s);
  /// Each of these starts `job`, which has not begun; when it throws, no job was started.
  /// `holders` keeps the memory at `addresses` valid; it is let go by a later call of any kind,
  /// after the job has ended.
  void put_async(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                 const AddressArray& addresses, pybind11::object holders,
                 const std::optional<pybind11::bytes>& parent, bool chain,
                 std::uint64_t request_hash, double timeout_s);
  void get_async(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                 const AddressArray& addresses, pybind11::object holders, bool prefix,
                 std::uint64_t request_hash, double timeout_s);
  /// Makes an engine's tensors known to the transfer engine of their device (opened at its first
  /// use; ordinal -1: the host).
  std::unique_ptr<CoreAttachment> attach(std::uint32_t namespace_index, int cuda_ordinal,
                                         const std::vector<TensorPair>& tensors,
                                         const std::vector<FragmentFields>& fragments,
                                         const std::vector<std::uint64_t>& part_bytes,
                                         pybind11::object holders, const pybind11::dict& options);
  /// A save and a load whose moves other processes carry out. Throw ConfigError: the store keeps
  /// its memory to itself.
  void plan_save(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                 const PlannedRanks& ranks, const std::optional<pybind11::bytes>& parent,
                 bool chain, std::uint64_t request_hash, double timeout_s);
  void plan_load(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                 const PlannedRanks& ranks, bool prefix, std::uint64_t request_hash,
                 double timeout_s);
  bool finish_plan(paged::RankResult result);
  std::size_t abandon_rank(std::uint32_t rank);
  std::uint64_t plan_generation() const { return plans_->generation(); }
  /// Lets other processes map the store's memory, and says where it is to be had.
  std::vector<ArenaPlace> share_arenas();
  /// Jobs that ended since the last call.
  std::vector<std::unique_ptr<CoreJob>> poll_jobs();
  int job_event_fd();
  void prefetch(std::uint32_t namespace_index, const KeyArray& keys);
  std::uint64_t erase(std::uint32_t namespace_index, const KeyArray& keys);
  /// namespace_id: empty means all.
  std::uint64_t erase_where(const pybind11::bytes& namespace_id,
                            std::vector<std::uint32_t> segment_ids);
  std::uint64_t pin(std::uint32_t namespace_index, const KeyArray& keys);
  std::uint64_t unpin(std::uint32_t namespace_index, const KeyArray& keys);
  pybind11::tuple flush(double timeout_s);
  pybind11::dict clear(bool host, bool disk);
  pybind11::dict stats();
  /// (kind, owner, id, num_blocks, num_bytes, since_s, until_s) each; times of the system's clock.
  pybind11::list holders(std::size_t num_max);
  void close(double timeout_s);
  bool is_closed() const { return is_closed_; }
  void abandon_after_fork();
  std::vector<LogQueue::Line> drain_log() { return lines_->take_all(); }

  // For CoreAttachment.
  void save_async(CoreJob& job, const SaveRequest& request, pybind11::object holders);
  void load_async(CoreJob& job, const LoadRequest& request, pybind11::object holders);
  void check_open() const { (void)use(); }
  /// Says once what keeps transfers of the device from being fast.
  void warn_of_refusal(paged::PagedDevice& device);
  bool is_forked() const { return is_forked_; }

  // For CoreJob.
  void check_not_forked() const;
  void wait_job(const Job& job, double timeout_s);
  void cancel_job(const Job& job);
  void order_stream_after(const Job& job, paged::PagedMover& mover, std::uint64_t stream_id,
                          double timeout_s);
  void take_plans(paged::PlannedMover& mover, double timeout_s, pybind11::list taken);
  void put_back_plans(paged::PlannedMover& mover, const std::vector<paged::PlanId>& plan_ids);
  void release_buffers() { buffers_->release_ended(); }

 private:
  /// Throws ClosedError after close or fork.
  std::shared_ptr<Store> use() const;
  /// Calls without the GIL, then hands over the log lines that came meanwhile.
  template <typename Call>
  auto run(const Call& call);
  /// Starts `job` by `submit_job(store, on_end)`, and keeps `holders` until it has ended.
  template <typename Submit>
  void submit(CoreJob& job, pybind11::object holders, const Submit& submit_job);
  class CountedCall;
  void count_call(bool is_begun);
  std::shared_ptr<paged::PagedDevice> open_device(Store& store,
                                                  const paged::PagedDeviceOptions& options,
                                                  Status& failure);
  std::shared_ptr<BlockMover> make_planned_mover(transfer::TransferDirection direction,
                                                 const PlannedRanks& ranks);
  void add_page_locks(pybind11::dict host_fields);
  /// After the store: nothing of it is on a device any more.
  void close_devices(double timeout_s);
  void stop_sharing();
  /// Waits until no other thread is between releasing the GIL and taking it again.
  void wait_for_calls();
  void deliver_log();

  // Neither is held while taking the GIL; the first is taken before the second.
  std::mutex opening_mutex_;
  // Guarded by devices_mutex_. Outlive the store.
  std::mutex devices_mutex_;
  std::map<int, std::shared_ptr<paged::PagedDevice>> devices_;  // By CUDA ordinal.
  std::unique_ptr<ArenaServer> arena_server_;                   // Once somebody asked for it.
  bool are_devices_closed_ = false;
  // Guarded by the GIL.
  std::shared_ptr<Store> store_;
  bool is_closed_ = false;
  bool is_forked_ = false;
  pybind11::object log_;
  // Guarded by calls_mutex_, which is never held while taking the GIL.
  std::mutex calls_mutex_;
  std::condition_variable calls_changed_;
  std::size_t num_calls_ = 0;  // Threads that released the GIL for a call.
  // Constant after construction; what it points to is thread-safe.
  const std::shared_ptr<LogQueue> lines_ = std::make_shared<LogQueue>();
  const std::shared_ptr<paged::PlanTable> plans_ = std::make_shared<paged::PlanTable>();
  const std::shared_ptr<BufferKeeper> buffers_ = std::make_shared<BufferKeeper>();
};

}  // namespace kvtier::bindings
