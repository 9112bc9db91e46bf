// ChainLengths: how long the chains of blocks are that lie in a directory. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/slot_table.h"

namespace kvtier::disk {

class ChainLengths {
 public:
  void add(const format::SlotEntry& entry) {
    links_.push_back(
        {entry.generation, entry.key, entry.parent, entry.namespace_index, entry.is_root});
  }

  /// Blocks in the longest line of parents and children of each namespace; what has lost its parent
  /// is of no line.
  std::map<std::uint32_t, std::uint64_t> longest() {
    // Of two entries with one key the later one counts; a parent's generation is below its child's.
    std::sort(links_.begin(), links_.end(),
              [](const Link& one, const Link& other) { return one.generation < other.generation; });
    std::map<std::uint32_t, Depths> depths;
    std::map<std::uint32_t, std::uint64_t> longest;
    for (const Link& link : links_) {
      Depths& known = depths[link.namespace_index];
      std::uint64_t depth = 1;
      if (!link.is_root) {
        const auto parent = known.find(link.parent);
        if (parent == known.end()) continue;
        depth = parent->second + 1;
      }
      known[link.key] = depth;
      longest[link.namespace_index] = std::max(longest[link.namespace_index], depth);
    }
    return longest;
  }

 private:
  struct Link {
    std::uint64_t generation = 0;
    BlockKey key;
    BlockKey parent;
    std::uint32_t namespace_index = 0;
    bool is_root = true;
  };
  struct FirstBytes {
    std::size_t operator()(const BlockKey& key) const {
      std::size_t bytes = 0;  // A key is a digest.
      std::memcpy(&bytes, key.bytes.data(), sizeof bytes);
      return bytes;
    }
  };
  using Depths = std::unordered_map<BlockKey, std::uint64_t, FirstBytes>;

  std::vector<Link> links_;
};

}  // namespace kvtier::disk
