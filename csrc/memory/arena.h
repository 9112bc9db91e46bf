// Arena: one private host mapping that the host tier and the staging buffers are cut from. Creation
// and destruction are for one thread; the bytes belong to whoever holds a slot of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace kvtier {

struct ArenaInfo {
  std::uint64_t num_bytes = 0;
  bool is_huge_page_advised = false;  // Transparent huge pages were asked for and not refused.
  std::string note;                   // Why something is less than best; empty when nothing is.
};

class Arena {
 public:
  /// Maps `num_bytes` (rounded up to 2 MiB when at least that, else to pages), private and
  /// anonymous, transparent huge pages advised, not inherited by forked children (MADV_DONTFORK),
  /// not in core dumps (MADV_DONTDUMP). Memory is taken when first touched. 0 bytes is an empty
  /// arena. kExhausted with need and reason when the system refuses.
  static Result<std::unique_ptr<Arena>> create(std::uint64_t num_bytes);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  std::uint64_t num_bytes() const { return info_.num_bytes; }
  const ArenaInfo& info() const { return info_; }
  std::span<std::byte> bytes(std::uint64_t offset_bytes, std::uint64_t length_bytes) const;

  /// Gives the memory of whole pages inside the range back to the system; it reads as zero then.
  void release(std::uint64_t offset_bytes, std::uint64_t length_bytes);
  /// Never unmaps: for a kernel that still holds I/O into it. The memory stays until process exit.
  void leak();

 private:
  Arena() = default;
  // Constant after creation, but for leak().
  std::byte* base_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;  // To unmap; 0 when there is nothing, or after leak().
  int owner_process_id_ = 0;        // A forked child must not unmap what is not mapped there.
  ArenaInfo info_;
};

}  // namespace kvtier
