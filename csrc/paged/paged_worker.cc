// Plans as jobs of the transfer engine. Thread-safe.
#include "paged/paged_worker.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/checksum.h"

namespace kvtier::paged {
namespace {

using transfer::TransferDirection;

Status refused(const MovePlan& plan, const std::string& reason) {
  return Status(StatusCode::kInvalidArgument,
                "cannot carry out plan: plan_id=" + std::to_string(plan.plan_id) + ": " + reason);
}

/// Whatever happens to a job here, for the store it is done, corrupt or failed.
Status status_for_store(Status status) {
  if (status.code() != StatusCode::kCancelled) return status;
  return Status(StatusCode::kIoError, "its worker cancelled it");
}

/// The first of them, as many as fit in a line.
std::string text_of(const std::vector<std::uint64_t>& part_bytes) {
  constexpr std::size_t kShownMax = 8;
  std::string text = "(";
  for (std::size_t k = 0; k < std::min(part_bytes.size(), kShownMax); ++k) {
    text += (k == 0 ? "" : ", ") + std::to_string(part_bytes[k]);
  }
  if (part_bytes.size() > kShownMax) text += ", and so on, " + std::to_string(part_bytes.size());
  return text + ")";
}

/// uint64[num_blocks, parts.num_parts] from the engine's, which counts the parts before too.
std::vector<std::uint64_t> own_sums(const std::vector<std::uint64_t>& sums,
                                    const PartRange& parts) {
  const std::size_t width = parts.first + parts.num_parts;
  std::vector<std::uint64_t> own;
  for (std::size_t at = 0; at < sums.size(); at += width) {
    const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(at + parts.first);
    own.insert(own.end(), begin, begin + static_cast<std::ptrdiff_t>(parts.num_parts));
  }
  return own;
}

}  // namespace

struct PagedWorker::Rows {
  std::vector<std::int64_t> block_ids;
  std::vector<std::byte*> slots;
  std::vector<ChecksumSeed> seeds;
};

Result<std::unique_ptr<PagedWorker>> PagedWorker::create(
    ArenaView& view, const PagedWorkerOptions& options,
    std::span<const layout::TensorPlace> tensors,
    std::span<const layout::FragmentPlace> fragments) {
  const PartRange& parts = options.parts;
  const auto& part_bytes = options.part_bytes;
  if (parts.num_parts == 0 || parts.first > part_bytes.size() ||
      parts.num_parts > part_bytes.size() - parts.first) {
    return Status(StatusCode::kInvalidArgument,
                  "no such parts: " + std::to_string(parts.first) + " to " +
                      std::to_string(parts.first + parts.num_parts) +
                      " of num_parts=" + std::to_string(part_bytes.size()));
  }
  std::unique_ptr<PagedWorker> worker(new PagedWorker(view, options));
  const auto own_begin = part_bytes.begin() + static_cast<std::ptrdiff_t>(parts.first);
  const auto own_end = own_begin + static_cast<std::ptrdiff_t>(parts.num_parts);
  worker->parts_offset_bytes_ = std::accumulate(part_bytes.begin(), own_begin, std::uint64_t{0});
  worker->parts_bytes_ = std::accumulate(own_begin, own_end, std::uint64_t{0});
  // A checksum is seeded with its part's index, so the parts before are there, with nothing in
  // them.
  std::vector<std::uint64_t> attached(parts.first, 0);
  attached.insert(attached.end(), own_begin, own_end);
  auto device = view.device(options.device);
  if (!device.is_ok()) return device.status();
  auto attachment =
      PagedAttachment::create(std::move(device).value(), tensors, fragments, attached);
  if (!attachment.is_ok()) return attachment.status();
  worker->attachment_ = std::move(attachment).value();
  worker->submitted_ = view.submitted_plans(options.rank);
  return worker;
}

Result<std::shared_ptr<WorkerJob>> PagedWorker::submit(const MovePlan& plan,
                                                       std::span<const std::int64_t> block_ids,
                                                       StreamId stream,
                                                       std::function<void()> on_end) {
  if (Status sound = check_plan(plan); !sound.is_ok()) return sound;
  auto found = find_rows(plan, block_ids);
  if (!found.is_ok()) return found.status();
  const Rows& rows = found.value();
  const std::vector<std::uint64_t> expected = expected_sums(plan, rows);
  transfer::TransferEngine& engine = device().engine();
  auto ready = engine.record_ready(stream);
  if (!ready.is_ok()) return ready.status();
  auto job = std::make_shared<WorkerJob>(attachment_->device());
  transfer::TransferRequest request;
  request.direction = plan.direction;
  request.attachment_id = attachment_->attachment_id();
  request.block_ids = rows.block_ids;
  request.slots = rows.slots;
  request.ready = std::move(ready).value();
  request.seeds = rows.seeds;
  request.checksums = expected;
  request.on_result = [job, on_end = std::move(on_end), plan_id = plan.plan_id,
                       arena_id = plan.arena_id, parts = options_.parts, block_ids = rows.block_ids,
                       block_indices = plan.block_indices](transfer::TransferResult moved) {
    RankResult result;
    result.plan_id = plan_id;
    result.arena_id = arena_id;
    result.parts = parts;
    try {
      result.checksums = own_sums(moved.checksums, parts);
      std::unordered_map<std::int64_t, std::size_t> index_of;
      for (std::size_t k = 0; k < block_ids.size(); ++k) index_of[block_ids[k]] = block_indices[k];
      for (const std::int64_t block_id : moved.undefined_block_ids) {
        result.undefined_indices.push_back(index_of.at(block_id));
      }
      result.status = status_for_store(std::move(moved.status));
    } catch (const std::bad_alloc&) {
      // The plan must have its end; what came of it is lost with the memory.
      result.checksums.clear();
      result.undefined_indices.clear();
      result.status = Status(StatusCode::kIoError, "out of memory");
    }
    job->end(std::move(result));
    if (on_end) on_end();
  };
  // Before the engine has it: of two that submit one plan at once only one moves it, and what comes
  // after cannot fail.
  if (!submitted_->note(plan.plan_id)) {
    return refused(plan, "it was submitted before, and its slots may be others' by now");
  }
  auto submitted = engine.submit(request);
  if (!submitted.is_ok()) {
    submitted_->take_back(plan.plan_id);
    return submitted.status();
  }
  job->set_transfer(submitted.value());
  return job;
}

Status PagedWorker::check_plan(const MovePlan& plan) const {
  const std::size_t num_blocks = plan.block_indices.size();
  const bool has_sums = plan.direction == TransferDirection::kLoad && !plan.keys.empty();
  const std::size_t num_sums = has_sums ? num_blocks * options_.part_bytes.size() : 0;
  if (plan.arena_id != view_.arena_id()) {
    return refused(plan, "it is of another store, or of this one before it was opened anew");
  }
  if (plan.namespace_id != options_.namespace_id) {
    return refused(plan, "it is of namespace " + plan.namespace_id.to_hex() +
                             ", the worker of namespace " + options_.namespace_id.to_hex());
  }
  if (plan.part_bytes != options_.part_bytes) {
    return refused(plan, "its blocks have part_bytes=" + text_of(plan.part_bytes) +
                             ", the worker was made with part_bytes=" +
                             text_of(options_.part_bytes) + "; make it with Namespace.part_bytes");
  }
  if (plan.generation < options_.generation) {
    return refused(plan,
                   "it was made before a rank was abandoned, for the process that was here "
                   "then: generation=" +
                       std::to_string(plan.generation) +
                       " of the worker: generation=" + std::to_string(options_.generation));
  }
  if (plan.slot_offsets.size() != num_blocks || plan.checksums.size() != num_sums ||
      (!plan.keys.empty() && plan.keys.size() != num_blocks)) {
    return refused(plan,
                   "its arrays do not fit each other: num_blocks=" + std::to_string(num_blocks) +
                       " num_slots=" + std::to_string(plan.slot_offsets.size()) +
                       " num_keys=" + std::to_string(plan.keys.size()) +
                       " num_checksums=" + std::to_string(plan.checksums.size()));
  }
  return Status::ok();
}

Result<PagedWorker::Rows> PagedWorker::find_rows(const MovePlan& plan,
                                                 std::span<const std::int64_t> block_ids) const {
  Rows rows;
  for (std::size_t k = 0; k < plan.block_indices.size(); ++k) {
    const std::size_t index = plan.block_indices[k];
    if (index >= block_ids.size()) {
      return refused(plan, "block_ids: " + std::to_string(block_ids.size()) +
                               " of them, but the plan has the key at " + std::to_string(index) +
                               "; give the row of each key of the call");
    }
    const std::uint64_t slot_bytes = parts_offset_bytes_ + parts_bytes_;
    std::byte* slot = view_.address(plan.slot_offsets[k], slot_bytes);
    if (slot == nullptr) {
      return refused(plan, "a slot outside the arena: slot_offset_bytes=" +
                               std::to_string(plan.slot_offsets[k]) +
                               " arena_bytes=" + std::to_string(view_.num_bytes()));
    }
    rows.block_ids.push_back(block_ids[index]);
    rows.slots.push_back(slot + parts_offset_bytes_);
    if (!plan.keys.empty()) rows.seeds.push_back({plan.keys[k], plan.namespace_id, 0});
  }
  return rows;
}

std::vector<std::uint64_t> PagedWorker::expected_sums(const MovePlan& plan,
                                                      const Rows& rows) const {
  std::vector<std::uint64_t> expected;
  if (plan.checksums.empty()) return expected;
  const PartRange& parts = options_.parts;
  for (std::size_t k = 0; k < rows.seeds.size(); ++k) {
    ChecksumSeed seed = rows.seeds[k];
    for (; seed.part_index < parts.first; ++seed.part_index) {
      expected.push_back(checksum_part({}, seed));
    }
    const auto own = plan.checksums.begin() +
                     static_cast<std::ptrdiff_t>(k * options_.part_bytes.size() + parts.first);
    expected.insert(expected.end(), own, own + static_cast<std::ptrdiff_t>(parts.num_parts));
  }
  return expected;
}

}  // namespace kvtier::paged
