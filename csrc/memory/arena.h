// Arena: one host mapping that the host tier or the staging buffers are cut from, of one process or
// shared by several. Creation and destruction are for one thread; the bytes belong to whoever holds
// a slot of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "memory/shared_memory.h"

namespace kvtier {

enum class ArenaKind : std::uint8_t {
  kPrivate,  // Of this process only: huge pages where the system has them for anybody.
  kShared,   // Other processes can map it too; see open_shared().
};

struct ArenaInfo {
  std::uint64_t num_bytes = 0;
  bool is_huge_page_advised = false;  // Transparent huge pages were asked for and not refused.
  std::string note;                   // Why something is less than best; empty when nothing is.
};

class Arena {
 public:
  /// Maps `num_bytes` (rounded up to 2 MiB when at least that, else to pages), transparent huge
  /// pages advised, not inherited by forked children (MADV_DONTFORK), not in core dumps
  /// (MADV_DONTDUMP). Memory is taken when first touched. 0 bytes is an empty arena, shared with
  /// nobody. kExhausted with need and reason when the system refuses.
  static Result<std::unique_ptr<Arena>> create(std::uint64_t num_bytes,
                                               ArenaKind kind = ArenaKind::kPrivate);
  /// Maps the shared arena of another process that `fd` stands for, as create() did; `fd` stays the
  /// caller's. The memory lives until the last process unmaps it. kInvalidArgument: it is another
  /// one, see check_shared_memory(); kExhausted.
  static Result<std::unique_ptr<Arena>> open_shared(int fd, const ArenaId& id,
                                                    std::uint64_t num_bytes);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  std::uint64_t num_bytes() const { return info_.num_bytes; }
  const ArenaInfo& info() const { return info_; }
  /// Whether other processes can map it: it was created so.
  bool is_shared() const { return fd_ >= 0; }
  /// Of a shared arena: what proves that a descriptor stands for it, and the descriptor to hand
  /// over, valid as long as the arena.
  const ArenaId& id() const { return id_; }
  int fd() const { return fd_; }
  std::span<std::byte> bytes(std::uint64_t offset_bytes, std::uint64_t length_bytes) const;

  /// Gives the memory of whole pages inside the range back to the system; it reads as zero then.
  void release(std::uint64_t offset_bytes, std::uint64_t length_bytes);
  /// Never unmaps: for a kernel that still holds I/O into it. The memory stays until process exit.
  void leak();
  /// In a forked child: the memory must not live on there when its process has ended.
  void close_after_fork();

 private:
  Arena() = default;
  /// Maps `num_bytes` of `fd`, or of anonymous memory when it is negative.
  Status map(int fd, std::uint64_t num_bytes);

  // Constant after creation, but for leak() and close_after_fork().
  int fd_ = -1;  // Of a shared arena that was created here.
  bool is_private_ = true;
  ArenaId id_;
  std::byte* base_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;  // To unmap; 0 when there is nothing, or after leak().
  int owner_process_id_ = 0;        // A forked child must not unmap what is not mapped there.
  ArenaInfo info_;
};

}  // namespace kvtier
