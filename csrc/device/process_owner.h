// ProcessOwner: tells whether this is the process that opened the device, or a forked child of it,
// where there are no threads and no driver to go with it. Constant, so thread-safe.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace kvtier {

class ProcessOwner {
 public:
  ProcessOwner() : owner_pid_(::getpid()) {
    void* page =
        ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    // Every call of the device asks, several for each chunk, and asking the system would cost as
    // much as the rest of the check; a page that a child finds empty costs nothing.
    if (::madvise(page, kPageBytes, MADV_WIPEONFORK) == 0) {
      mark_ = static_cast<std::atomic<unsigned>*>(page);
      mark_->store(kOwner, std::memory_order_relaxed);
    } else {
      ::munmap(page, kPageBytes);
    }
  }
  ~ProcessOwner() {
    if (mark_ != nullptr) ::munmap(mark_, kPageBytes);
  }
  ProcessOwner(const ProcessOwner&) = delete;
  ProcessOwner& operator=(const ProcessOwner&) = delete;

  bool is_this_process() const {
    if (mark_ != nullptr) return mark_->load(std::memory_order_relaxed) == kOwner;
    return ::getpid() == owner_pid_;
  }

 private:
  static constexpr std::size_t kPageBytes = 4096;
  static constexpr unsigned kOwner = 1;
  static_assert(std::atomic<unsigned>::is_always_lock_free);

  const pid_t owner_pid_;
  std::atomic<unsigned>* mark_ = nullptr;  // Null: the system has no such pages.
};

}  // namespace kvtier
