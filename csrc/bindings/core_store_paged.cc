// The calls of CoreStore for engines' paged tensors, in this process and in others: convert,
// release the GIL, call, convert.
#include "base/wait_piece.h"
#include "bindings/array_arguments.h"
#include "bindings/core_attachment.h"
#include "bindings/core_job.h"
#include "bindings/core_store_call.h"
#include "bindings/errors_binding.h"
#include "bindings/plan_arguments.h"
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
  Status failure = Status::ok();
  auto attached = run([&](Store& store) -> Result<std::shared_ptr<const paged::PagedAttachment>> {
    auto device = open_device(store, device_options, failure);
    if (device == nullptr) return failure;
    return paged::PagedAttachment::create(std::move(device), places, pieces, part_bytes);
  });
  throw_if_error(failure, CallKind::kSetUp);
  return std::make_unique<CoreAttachment>(*this, value_or_throw(std::move(attached)),
                                          namespace_index, std::move(holders));
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
  const auto& [namespace_id, part_bytes, num_ranks] = ranks;
  const paged::PlanTable::Call call{direction, digest_of(namespace_id), num_ranks, part_bytes};
  return std::make_shared<paged::PlannedMover>(plans_, call);
}

void CoreStore::plan_save(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                          const PlannedRanks& ranks, const std::optional<py::bytes>& parent,
                          bool chain, std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  save_async(job,
             {namespace_index, copied, make_planned_mover(TransferDirection::kSave, ranks),
              parent_of(parent), chain, request_hash, ns_from_s(timeout_s)},
             py::none());
}

void CoreStore::plan_load(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                          const PlannedRanks& ranks, bool prefix, std::uint64_t request_hash,
                          double timeout_s) {
  const auto copied = keys_of(keys);
  load_async(job,
             {namespace_index, copied, make_planned_mover(TransferDirection::kLoad, ranks), prefix,
              request_hash, ns_from_s(timeout_s)},
             py::none());
}

bool CoreStore::finish_plan(paged::RankResult result) {
  return value_or_throw(run([&](Store&) { return plans_->finish(std::move(result)); }));
}

std::size_t CoreStore::abandon_rank(std::uint32_t rank) {
  return run([&](Store&) { return plans_->abandon_rank(rank); });
}

void CoreStore::take_plans(paged::PlannedMover& mover, double timeout_s, py::list taken) {
  std::vector<paged::MovePlan> plans;
  try {
    run([&](Store&) {
      SystemClock clock;
      plans = mover.take_plans(clock, deadline_after(clock.now_ns(), ns_from_s(timeout_s)));
      return 0;
    });
    for (const paged::MovePlan& plan : plans) taken.append(bindings::dict_of(plan));
  } catch (...) {
    // Else nobody would ever take them.
    std::vector<paged::PlanId> plan_ids;
    for (const paged::MovePlan& plan : plans) plan_ids.push_back(plan.plan_id);
    if (!plan_ids.empty()) mover.put_back_plans(plan_ids);
    taken.attr("clear")();
    throw;
  }
}

void CoreStore::put_back_plans(paged::PlannedMover& mover,
                               const std::vector<paged::PlanId>& plan_ids) {
  run([&](Store&) {
    mover.put_back_plans(plan_ids);
    return 0;
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
