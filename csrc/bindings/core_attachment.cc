// The calls of CoreAttachment: convert, release the GIL, call, convert.
#include "bindings/core_attachment.h"

#include <utility>

#include "bindings/array_arguments.h"
#include "bindings/core_job.h"
#include "bindings/errors_binding.h"
#include "bindings/transfer_options_binding.h"
#include "paged/paged_mover.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

using transfer::TransferDirection;

}  // namespace

CoreAttachment::CoreAttachment(CoreStore& store,
                               std::shared_ptr<const paged::PagedAttachment> attachment,
                               std::uint32_t namespace_index, py::object holders)
    : store_(store),
      device_(attachment->device()),
      namespace_index_(namespace_index),
      holders_(std::move(holders)),
      attachment_(std::move(attachment)) {}

CoreAttachment::~CoreAttachment() {
  // In the child of a fork the engine's locks may be held by threads that are not there.
  if (store_.is_forked()) {
    static_cast<void>(new std::shared_ptr<const paged::PagedAttachment>(std::move(attachment_)));
  }
}

std::vector<std::int64_t> CoreAttachment::ids_of(const IdArray& block_ids,
                                                 std::size_t num_keys) const {
  if (block_ids.ndim() != 1 || static_cast<std::size_t>(block_ids.size()) != num_keys) {
    throw_if_error(Status(StatusCode::kInvalidArgument,
                          "block_ids: " + std::to_string(block_ids.size()) + " of them for " +
                              std::to_string(num_keys) + " keys"));
  }
  if (!attachment_) {
    throw_if_error(Status(StatusCode::kInvalidArgument, "the tensors were detached; attach again"));
  }
  const std::uint64_t num_rows = attachment_->num_rows();
  const std::vector<std::int64_t> ids(block_ids.data(), block_ids.data() + block_ids.size());
  for (const std::int64_t block_id : ids) {
    if (block_id >= 0 && static_cast<std::uint64_t>(block_id) < num_rows) continue;
    throw_if_error(Status(StatusCode::kInvalidArgument,
                          "block_ids: not a row of the tensors: block_id=" +
                              std::to_string(block_id) + " num_rows=" + std::to_string(num_rows)));
  }
  return ids;
}

std::shared_ptr<BlockMover> CoreAttachment::make_mover(TransferDirection direction,
                                                       std::vector<std::int64_t> block_ids,
                                                       std::uint64_t stream_id) {
  store_.check_open();
  store_.warn_of_refusal(*device_);
  // In this very thread: its default stream may be meant.
  auto ready = [&] {
    const py::gil_scoped_release release;
    return device_->engine().record_ready({stream_id});
  }();
  return std::make_shared<paged::PagedMover>(attachment_, direction, std::move(block_ids),
                                             value_or_throw(std::move(ready)));
}

void CoreAttachment::save(CoreJob& job, const KeyArray& keys, const IdArray& block_ids,
                          std::uint64_t stream_id, const std::optional<py::bytes>& parent,
                          bool chain, std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  auto mover = make_mover(TransferDirection::kSave, ids_of(block_ids, copied.size()), stream_id);
  const SaveRequest request{namespace_index_,    copied, std::move(mover),
                            parent_of(parent),   chain,  request_hash,
                            ns_from_s(timeout_s)};
  store_.save_async(job, request, holders_);
}

void CoreAttachment::load(CoreJob& job, const KeyArray& keys, const IdArray& block_ids,
                          std::uint64_t stream_id, bool prefix, std::uint64_t request_hash,
                          double timeout_s) {
  const auto copied = keys_of(keys);
  auto mover = make_mover(TransferDirection::kLoad, ids_of(block_ids, copied.size()), stream_id);
  const LoadRequest request{namespace_index_, copied,       std::move(mover),
                            prefix,           request_hash, ns_from_s(timeout_s)};
  store_.load_async(job, request, holders_);
}

void CoreAttachment::detach() {
  if (!attachment_) return;
  store_.check_not_forked();
  // Each save and load under way holds it too.
  if (attachment_.use_count() > 1) {
    throw_if_error(Status(StatusCode::kInvalidArgument,
                          "cannot detach: saves or loads use the tensors; wait for them first"));
  }
  attachment_.reset();
  holders_ = py::none();
}

py::dict CoreAttachment::stats() const {
  store_.check_not_forked();
  py::dict fields = dict_of(device_->engine().stats());
  fields["note"] = device_->engine().note();
  fields["device"] = device_->engine().device_info().name;
  return fields;
}

}  // namespace kvtier::bindings
