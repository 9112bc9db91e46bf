// GetCall: one get or load under way, between its files. Lies in the frame of its coroutine;
// guarded by the store's mutex.
#pragma once

#include <memory>
#include <vector>

#include "store/store_impl.h"

namespace kvtier {

struct Store::Impl::GetCall {
  struct Block {
    EntryIndex entry = kNoEntry;
    std::shared_ptr<store::Load> load;
    bool is_from_disk = false;
    bool is_staged = false;  // Its load began in a staging buffer of this call.
    Outcome outcome = Outcome::kMiss;
    std::byte* source = nullptr;  // Its host slot, during the copy; or where a move takes it from.
    bool is_moved = false;        // A mover was given its engine memory.
  };
  const GetRequest& request;
  const Namespace& space;
  TimeNs deadline_ns = 0;
  std::vector<Block> blocks;
  std::size_t num_found = 0;
  std::size_t next_to_issue = 0;
  std::uint64_t read_ahead_bytes = 0;  // Of loads that this call uses now.
  std::uint64_t staged_bytes = 0;      // Of those, in staging buffers of its own.
  std::size_t num_loads = 0;
  std::uint64_t full_bytes = 0;  // What was under way when no more was let in; 0: all was.
};

}  // namespace kvtier
