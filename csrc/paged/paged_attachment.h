// PagedAttachment: tensors that a device's transfer engine knows, for as long as anybody needs
// them. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "paged/paged_device.h"

namespace kvtier::paged {

class PagedAttachment {
 public:
  PagedAttachment(std::shared_ptr<PagedDevice> device, transfer::AttachmentId attachment_id,
                  std::uint64_t num_rows)
      : device_(std::move(device)), attachment_id_(attachment_id), num_rows_(num_rows) {}
  /// Whoever starts moves holds it until they have ended, so nothing uses the tensors now.
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
