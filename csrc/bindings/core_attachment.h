// CoreAttachment: what Python holds of an engine's paged tensors that a store saves from and loads
// into. Its members are constant; the calls release the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/core_store.h"
#include "bindings/paged_arguments.h"
#include "paged/paged_attachment.h"

namespace kvtier::bindings {

/// The store outlives it: every binding that makes one keeps the store alive.
class CoreAttachment {
 public:
  /// `holders` keeps the tensors valid.
  CoreAttachment(CoreStore& store, std::shared_ptr<const paged::PagedAttachment> attachment,
                 std::uint32_t namespace_index, pybind11::object holders);
  ~CoreAttachment();
  CoreAttachment(const CoreAttachment&) = delete;
  CoreAttachment& operator=(const CoreAttachment&) = delete;

  /// Start `job`, as CoreStore::put_async().
  void save(CoreJob& job, const KeyArray& keys, const IdArray& block_ids, std::uint64_t stream_id,
            const std::optional<pybind11::bytes>& parent, bool chain, std::uint64_t request_hash,
            double timeout_s);
  void load(CoreJob& job, const KeyArray& keys, const IdArray& block_ids, std::uint64_t stream_id,
            bool prefix, std::uint64_t request_hash, double timeout_s);
  /// Lets go of the tensors. Throws UsageError while jobs use them.
  void detach();
  /// Figures of the device's transfers, of all who share it.
  pybind11::dict stats() const;

 private:
  /// Throws UsageError for another number of them, or one out of range.
  std::vector<std::int64_t> ids_of(const IdArray& block_ids, std::size_t num_keys) const;
  std::shared_ptr<BlockMover> make_mover(transfer::TransferDirection direction,
                                         std::vector<std::int64_t> block_ids,
                                         std::uint64_t stream_id);

  CoreStore& store_;
  const std::shared_ptr<paged::PagedDevice> device_;
  const std::uint32_t namespace_index_;
  // Guarded by the GIL.
  pybind11::object holders_;
  std::shared_ptr<const paged::PagedAttachment> attachment_;  // Null: detached.
};

}  // namespace kvtier::bindings
