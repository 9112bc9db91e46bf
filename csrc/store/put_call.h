// PutCall: one put under way, between its files. Lies in the frame of its coroutine; guarded by the
// store's mutex but for `checksums` and the bytes at `target`, which its driver writes outside.
#pragma once

#include <unordered_map>
#include <vector>

#include "store/store_impl.h"

namespace kvtier {

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
