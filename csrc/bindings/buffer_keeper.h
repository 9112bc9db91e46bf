// BufferKeeper: holds the Python buffers of jobs until the core no longer touches them.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtier::bindings {

class BufferKeeper {
 public:
  BufferKeeper() = default;
  BufferKeeper(const BufferKeeper&) = delete;
  BufferKeeper& operator=(const BufferKeeper&) = delete;
  /// What is still kept may still be used: it is never freed then. Needs the GIL.
  ~BufferKeeper() {
    for (auto& [keep_id, holders] : kept_) static_cast<void>(holders.release());
  }

  /// Needs the GIL. Returns what note_end takes.
  std::uint64_t keep(pybind11::object holders) {
    kept_.emplace(++last_id_, std::move(holders));
    return last_id_;
  }
  /// The job has ended. Any thread; never takes the GIL.
  void note_end(std::uint64_t keep_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.push_back(keep_id);
    has_ended_.store(true, std::memory_order_release);
  }
  /// Lets go of the buffers of jobs that ended. Needs the GIL.
  void release_ended() {
    if (!has_ended_.load(std::memory_order_acquire)) return;
    std::vector<std::uint64_t> ended;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended.swap(ended_);
      has_ended_.store(false, std::memory_order_relaxed);
    }
    std::vector<pybind11::object> released;
    for (const std::uint64_t keep_id : ended) {
      const auto found = kept_.find(keep_id);
      if (found == kept_.end()) continue;
      released.push_back(std::move(found->second));
      kept_.erase(found);
    }
    // Freed at the end: a finalizer may call the store again.
  }

 private:
  // Guarded by the GIL.
  std::unordered_map<std::uint64_t, pybind11::object> kept_;
  std::uint64_t last_id_ = 0;
  // Guarded by mutex_, which is never held while taking the GIL.
  std::mutex mutex_;
  std::vector<std::uint64_t> ended_;
  // Release after an id was added, acquire by who looks for it: spares the mutex.
  std::atomic<bool> has_ended_{false};
};

}  // namespace kvtier::bindings
