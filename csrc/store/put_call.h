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
};

}  // namespace kvtier
