// The calls of CoreStore for engines' paged tensors, in this process and in others: convert,
// release the GIL, call, convert.
#include "base/wait_piece.h"
#include "bindings/array_arguments.h"
#include "bindings/core_attachment.h"
#include "bindings/core_job.h"
#include "bindings/core_store_call.h"
#include "bindings/errors_binding.h"
#include "bindings/transfer_options_binding.h"
#include "paged/paged_mover.h"
#include "paged/planned_mover.h"

namespace kvtier::bindings {

namespace py = pybind11;

using transfer::TransferDirection;

std::unique_ptr<CoreAttachment> CoreStore::attach(std::uint32_t namespace_index, int cuda_ordinal,
                                                  const std::vector<TensorPair>& tensors,
                                                  const std::vector<FragmentFields>& fragments,
                                                  const std::vector<std::uint64_t>& part_bytes,
                                                  py::object holders, const py::dict& options) {
  paged::PagedDeviceOptions device_options{cuda_ordinal, transfer_options_of(options)};
  // More than the store has jobs, of which a load has several moves.
  device_options.transfer.num_jobs_max = 16384;
  const auto places = places_of(tensors);
  const auto pieces = fragments_of(fragments);
  const FragmentTable table =
      value_or_throw(layout::make_fragment_table(places, pieces, part_bytes));
  Status failure = Status::ok();
  std::shared_ptr<paged::PagedDevice> device;
  const auto attached = run([&](Store& store) -> Result<transfer::AttachmentId> {
    device = open_device(store, device_options, failure);
    if (device == nullptr) return failure;
    return device->engine().attach(places, pieces, part_bytes);
  });
  throw_if_error(failure, CallKind::kSetUp);
  auto attachment = std::make_shared<const paged::PagedAttachment>(
      std::move(device), value_or_throw(attached), table.num_blocks());
  return std::make_unique<CoreAttachment>(*this, std::move(attachment), namespace_index,
                                          std::move(holders));
}

void CoreStore::order_stream_after(const Job& job, paged::PagedMover& mover,
                                   std::uint64_t stream_id, double timeout_s) {
  const TimeNs timeout_ns = ns_from_s(timeout_s);
  throw_if_error(run([&](Store& store) {
    // Where there are no streams, "after the job" is when it has ended.
    if (mover.is_on_host()) return store.wait_job(job, timeout_ns);
    return mover.order_stream_after({stream_id}, timeout_ns);
  }));
}

std::shared_ptr<BlockMover> CoreStore::make_planned_mover(TransferDirection direction,
                                                          const PlannedRanks& ranks) {
  (void)share_arenas();
  const auto& [namespace_id, num_parts, num_ranks] = ranks;
  const paged::PlanTable::Call call{direction, digest_of(namespace_id), num_ranks, num_parts};
  return std::make_shared<paged::PlannedMover>(plans_, call);
}

std::unique_ptr<CoreJob> CoreStore::plan_save(std::uint32_t namespace_index, const KeyArray& keys,
                                              const PlannedRanks& ranks,
                                              const std::optional<py::bytes>& parent, bool chain,
                                              std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  return save_async({namespace_index, copied, make_planned_mover(TransferDirection::kSave, ranks),
                     parent_of(parent), chain, request_hash, ns_from_s(timeout_s)},
                    py::none());
}

std::unique_ptr<CoreJob> CoreStore::plan_load(std::uint32_t namespace_index, const KeyArray& keys,
                                              const PlannedRanks& ranks, bool prefix,
                                              std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  return load_async({namespace_index, copied, make_planned_mover(TransferDirection::kLoad, ranks),
                     prefix, request_hash, ns_from_s(timeout_s)},
                    py::none());
}

bool CoreStore::finish_plan(paged::RankResult result) {
  return value_or_throw(run([&](Store&) { return plans_->finish(std::move(result)); }));
}

std::size_t CoreStore::abandon_rank(std::uint32_t rank) {
  return run([&](Store&) { return plans_->abandon_rank(rank); });
}

std::vector<paged::MovePlan> CoreStore::take_plans(paged::PlannedMover& mover, double timeout_s) {
  return run([&](Store&) {
    SystemClock clock;
    return mover.take_plans(clock, deadline_after(clock.now_ns(), ns_from_s(timeout_s)));
  });
}

std::vector<ArenaPlace> CoreStore::share_arenas() {
  return value_or_throw(run([&](Store& store) -> Result<std::vector<ArenaPlace>> {
                          const std::lock_guard<std::mutex> lock(devices_mutex_);
                          if (arena_server_) return arena_server_->places();
                          auto arenas = store.shared_arenas();
                          if (!arenas.is_ok()) return arenas.status();
                          auto server = ArenaServer::start(arenas.value());
                          if (!server.is_ok()) return server.status();
                          plans_->set_arenas(arenas.value());
                          arena_server_ = std::move(server).value();
                          return arena_server_->places();
                        }),
                        CallKind::kSetUp);
}

void CoreStore::stop_sharing() {
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(devices_mutex_);
  arena_server_.reset();
}

}  // namespace kvtier::bindings
