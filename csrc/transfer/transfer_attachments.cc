// The tensors that a transfer engine knows. Thread-safe.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "transfer/transfer_engine_impl.h"

namespace kvtier::transfer {

Result<AttachmentId> TransferEngine::Impl::attach(std::span<const layout::TensorPlace> tensors,
                                                  std::span<const layout::FragmentPlace> fragments,
                                                  std::span<const std::uint64_t> part_bytes) {
  Status usable = device_.failure();
  if (!usable.is_ok()) return usable;
  Result<FragmentTable> table = layout::make_fragment_table(tensors, fragments, part_bytes);
  if (!table.is_ok()) return table.status();
  auto attachment = std::make_shared<Attachment>(Attachment{std::move(table).value(), 0, {}, {}});
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    Result<std::uint64_t> identity =
        device_.identify_memory(tensors[index].base, tensors[index].length_bytes);
    if (!identity.is_ok()) {
      return Status(identity.status().code(),
                    identity.status().message() + " tensor_index=" + std::to_string(index));
    }
    attachment->memory.emplace_back(tensors[index].base, identity.value());
    attachment->borders.push_back(tensors[index].base);
    attachment->borders.push_back(tensors[index].base + tensors[index].length_bytes);
  }
  std::sort(attachment->borders.begin(), attachment->borders.end(), std::less<const std::byte*>());
  if (device_info_.has_kernels) {
    Result<std::uint32_t> table_id = device_.create_fragment_table(attachment->table);
    if (!table_id.is_ok()) return table_id.status();
    attachment->table_id = table_id.value();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  attachments_[++last_attachment_id_] = std::move(attachment);
  return last_attachment_id_;
}

Status TransferEngine::Impl::detach(AttachmentId attachment_id) {
  if (!device_.is_this_process()) {
    return Status(StatusCode::kClosed, "cannot detach from the device of another process");
  }
  std::shared_ptr<const Attachment> detached;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = attachments_.find(attachment_id);
    if (found == attachments_.end()) {
      return Status(
          StatusCode::kInvalidArgument,
          "cannot detach: unknown attachment: attachment_id=" + std::to_string(attachment_id));
    }
    for (const auto& [job_id, job] : jobs_) {
      if (!job->is_ended && job->attachment == found->second) {
        return Status(StatusCode::kBusy, "cannot detach while a job is under way: attachment_id=" +
                                             std::to_string(attachment_id) +
                                             " job_id=" + std::to_string(job_id));
      }
    }
    detached = std::move(found->second);
    attachments_.erase(found);
  }
  // Nobody finds it any more. With no mutex held: the device may be making another table.
  if (device_info_.has_kernels) device_.destroy_fragment_table(detached->table_id);
  return Status::ok();
}

}  // namespace kvtier::transfer
