// PutCall: one put under way, between its files. Lies in the frame of its coroutine; guarded by the
// store's mutex but for `checksums` and the bytes at `target`, which its driver writes outside.
#pragma once

#include <unordered_map>
#include <vector>

#include "store/store_impl.h"

namespace kvtier {

struct Store::Impl::PutBlock {
  /// kRenewed: stored, but its disk copy was found after an unclean close and nobody has checked
  /// it since; it is written once more, lest a flush call durable what is torn.
  enum class Kind : std::uint8_t { kNew, kRenewed, kStored, kJoined, kAlias, kDeclined };
  bool takes_bytes() const { return kind == Kind::kNew || kind == Kind::kRenewed; }
  Kind kind = Kind::kDeclined;
  EntryIndex entry = kNoEntry;
  std::size_t alias_of = 0;
  bool is_in_window = false;  // Its bytes went into a staging buffer.
  std::shared_ptr<store::Fill> fill;
  std::byte* target = nullptr;  // Its host slot.
  std::vector<std::uint64_t> checksums;
  Outcome outcome = Outcome::kDeclined;
};

struct Store::Impl::PutCall {
  const PutRequest& request;
  const Namespace& space;
  TimeNs deadline_ns = 0;
  std::vector<PutBlock> blocks;
  std::vector<store::BlockUse> uses;                // What is known of each key, this use included.
  std::unordered_map<EntryIndex, std::size_t> own;  // Entries of this call -> first block with it.
  std::vector<EntryIndex> held;
  // Of a put without a host slot (store_put_disk.cc).
  std::uint64_t window_bytes = 0;   // Of staging buffers that it holds.
  std::uint64_t untold_bytes = 0;   // Submitted, and the pump does not know yet.
  std::size_t first_in_window = 0;  // Blocks before it have ended, or hold no buffer.
};

}  // namespace kvtier
