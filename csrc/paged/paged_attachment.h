// PagedAttachment: tensors that a device's transfer engine knows, for as long as anybody needs
// them. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "layout/paged_geometry.h"
#include "paged/paged_device.h"

namespace kvtier::paged {

class PagedAttachment {
 public:
  /// kInvalidArgument: as TransferEngine::attach(), whose arguments these are.
  static Result<std::shared_ptr<const PagedAttachment>> create(
      std::shared_ptr<PagedDevice> device, std::span<const layout::TensorPlace> tensors,
      std::span<const layout::FragmentPlace> fragments, std::span<const std::uint64_t> part_bytes) {
    const auto table = layout::make_fragment_table(tensors, fragments, part_bytes);
    if (!table.is_ok()) return table.status();
    const auto attached = device->engine().attach(tensors, fragments, part_bytes);
    if (!attached.is_ok()) return attached.status();
    return std::make_shared<const PagedAttachment>(std::move(device), attached.value(),
                                                   table.value().num_blocks());
  }

  PagedAttachment(std::shared_ptr<PagedDevice> device, transfer::AttachmentId attachment_id,
                  std::uint64_t num_rows)
      : device_(std::move(device)), attachment_id_(attachment_id), num_rows_(num_rows) {}
  /// Whoever starts moves holds it until they have ended, so nothing uses the tensors now; what a
  /// worker's jobs still use goes when the device closes. In a forked child nothing happens.
  ~PagedAttachment() { (void)device_->engine().detach(attachment_id_).is_ok(); }
  PagedAttachment(const PagedAttachment&) = delete;
  PagedAttachment& operator=(const PagedAttachment&) = delete;

  const std::shared_ptr<PagedDevice>& device() const { return device_; }
  transfer::AttachmentId attachment_id() const { return attachment_id_; }
  std::uint64_t num_rows() const { return num_rows_; }  // Of blocks, in the tensors.

 private:
  const std::shared_ptr<PagedDevice> device_;
  const transfer::AttachmentId attachment_id_;
  const std::uint64_t num_rows_;
};

}  // namespace kvtier::paged
