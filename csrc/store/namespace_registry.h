// NamespaceRegistry: what the store knows of each namespace. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "store/slot_space.h"

namespace kvtier::store {

struct Namespace {
  NamespaceId id;
  std::string description;
  /// False: found on disk, but nobody has described its blocks since open; they cannot be asked
  /// for.
  bool is_attached = false;
  std::uint64_t block_bytes = 0;
  std::vector<std::uint64_t> part_bytes;  // At least one.
  std::uint64_t slot_bytes = 0;           // Of a block in either tier; whole I/O units.
  std::optional<ClassIndex> host_class;   // Absent: the tier is too small or not there.
  std::optional<ClassIndex> disk_class;
};

class NamespaceRegistry {
 public:
  static constexpr std::size_t kNamespacesMax = 65536;

  std::optional<std::uint32_t> find(const NamespaceId& id) const {
    for (std::uint32_t i = 0; i < namespaces_.size(); ++i) {
      if (namespaces_[i].id == id) return i;
    }
    return std::nullopt;
  }
  std::uint32_t add(Namespace added) {
    namespaces_.push_back(std::move(added));
    return static_cast<std::uint32_t>(namespaces_.size() - 1);
  }
  Namespace& at(std::uint32_t index) { return namespaces_.at(index); }
  const Namespace& at(std::uint32_t index) const { return namespaces_.at(index); }
  std::size_t size() const { return namespaces_.size(); }

 private:
  std::deque<Namespace> namespaces_;  // A deque: references stay valid.
};

}  // namespace kvtier::store
