// Locks pieces of queued memory, in order. Thread-safe.
#include "transfer/host_memory_locker.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/usable_cpus.h"
#include "base/wait_piece.h"
#include "memory/populate.h"

namespace kvtier::transfer {

namespace {

/// More of them gain nothing, and the engine wants CPUs too.
std::size_t num_populating_threads() { return std::clamp<std::size_t>(usable_cpus() / 2, 1, 8); }

}  // namespace

Status HostMemoryLocker::begin(std::span<std::byte> memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_cancelled_)
    return Status(StatusCode::kClosed, "cannot page-lock memory: engine is closed");
  if (find(memory) != items_.end()) {
    return Status(StatusCode::kBusy,
                  "cannot page-lock memory twice: length_bytes=" + std::to_string(memory.size()));
  }
  if (items_.size() == kMemoriesMax) {
    return Status(StatusCode::kExhausted,
                  "cannot page-lock memory: num_memories_max=" + std::to_string(kMemoriesMax));
  }
  if (has_thread_ && has_left_) {
    const BlockedSignals blocked;
    try {
      thread_ = std::thread([this] { run_thread(); });
    } catch (const std::system_error& error) {
      return Status::from_errno(error.code().value(), "cannot start thread");
    }
    has_left_ = false;
    pthread_setname_np(thread_.native_handle(), "kvtier-pagelock");
  }
  items_.push_back({memory, {}, 0, HostMemoryState::kPending, Status::ok()});
  changed_.notify_all();
  return Status::ok();
}

void HostMemoryLocker::run_thread() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_cancelled_) {
    if (!lock_piece(lock)) changed_.wait(lock);
  }
  has_left_ = true;
  changed_.notify_all();
}

bool HostMemoryLocker::advance() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (has_thread_ || is_cancelled_ || !lock_piece(lock)) return false;
  return find_pending() != items_.end();
}

bool HostMemoryLocker::lock_piece(std::unique_lock<std::mutex>& lock) {
  const auto found = find_pending();
  if (found == items_.end()) return false;
  Item& item = *found;
  const std::uint64_t rest_bytes = item.memory.size() - item.locked_bytes;
  const std::uint64_t piece_bytes =
      std::clamp(item.memory.size() / kPiecesMax, kPieceBytesMin, kPieceBytesMax);
  const auto piece =
      item.memory.subspan(item.locked_bytes, std::min({rest_bytes, piece_bytes, piece_bytes_max_}));
  locking_ = &item;
  lock.unlock();
  Status locked;
  try {
    if (!piece.empty()) {
      // The driver takes pages one by one, and everybody waits for it meanwhile; here nobody does.
      (void)populate(piece, num_populating_threads());
      locked = device_.page_lock(piece);
    }
  } catch (const std::exception& error) {
    locked = Status(StatusCode::kInternal, error.what());
  }
  lock.lock();
  const auto refused = take_answer(item, piece, locked);
  if (!refused.empty()) {
    // The driver takes its time for this too.
    lock.unlock();
    unlock(refused);
    lock.lock();
  }
  locking_ = nullptr;
  changed_.notify_all();
  return true;
}

// The item is still there: whoever drops it waits for this.
std::vector<std::span<std::byte>> HostMemoryLocker::take_answer(Item& item,
                                                                std::span<std::byte> piece,
                                                                const Status& locked) {
  if (locked.is_ok()) {
    if (!piece.empty()) item.pieces.push_back(piece);
    item.locked_bytes += piece.size();
    if (item.locked_bytes < item.memory.size()) return {};
    ranges_.adopt(item.memory, std::exchange(item.pieces, {}));
    item.state = HostMemoryState::kReady;
    return {};
  }
  item.refusal = Status(locked.code(),
                        locked.message() + ": locked_bytes=" + std::to_string(item.locked_bytes) +
                            " need_bytes=" + std::to_string(item.memory.size()),
                        locked.os_errno());
  item.state = HostMemoryState::kRefused;
  item.locked_bytes = 0;
  return std::exchange(item.pieces, {});
}

HostMemoryInfo HostMemoryLocker::info(std::span<std::byte> memory) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find(memory);
  if (found == items_.end()) return {};
  return {found->state, found->locked_bytes, found->refusal};
}

bool HostMemoryLocker::drop(std::span<std::byte> memory) {
  std::vector<std::span<std::byte>> pieces;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    auto found = find(memory);
    while (found != items_.end() && locking_ == &*found) {
      changed_.wait(lock);
      found = find(memory);
    }
    if (found == items_.end()) return false;
    const bool is_ready = found->state == HostMemoryState::kReady;
    pieces = std::move(found->pieces);
    items_.erase(found);
    if (is_ready) return false;
  }
  unlock(pieces);
  return true;
}

std::string HostMemoryLocker::note() const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Item& item : items_) {
    if (item.state == HostMemoryState::kRefused) return item.refusal.message();
  }
  return {};
}

std::uint64_t HostMemoryLocker::pending_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (const Item& item : items_) {
    if (item.state == HostMemoryState::kPending) sum_bytes += item.memory.size();
  }
  return sum_bytes;
}

void HostMemoryLocker::cancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_cancelled_ = true;
  changed_.notify_all();
}

bool HostMemoryLocker::stop(Clock& clock, TimeNs deadline_ns) {
  cancel();
  std::thread thread;
  Items dropped;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!has_left_) {
      const TimeNs now_ns = clock.now_ns();
      if (now_ns >= deadline_ns) return false;
      changed_.wait_for(lock, piece_until(now_ns, deadline_ns));
    }
    thread = std::move(thread_);  // Of several that stop it one joins.
    // No job was told of them.
    for (auto item = items_.begin(); item != items_.end();) {
      const auto next = std::next(item);
      if (item->state == HostMemoryState::kPending) dropped.splice(dropped.end(), items_, item);
      item = next;
    }
  }
  if (thread.joinable()) thread.join();
  for (const Item& item : dropped) unlock(item.pieces);
  return true;
}

void HostMemoryLocker::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (thread_.joinable()) thread_.detach();
}

HostMemoryLocker::Items::iterator HostMemoryLocker::find(std::span<std::byte> memory) {
  return std::find_if(items_.begin(), items_.end(), [&](const Item& item) {
    return item.memory.data() == memory.data() && item.memory.size() == memory.size();
  });
}

HostMemoryLocker::Items::const_iterator HostMemoryLocker::find(std::span<std::byte> memory) const {
  return const_cast<HostMemoryLocker*>(this)->find(memory);
}

HostMemoryLocker::Items::iterator HostMemoryLocker::find_pending() {
  return std::find_if(items_.begin(), items_.end(),
                      [](const Item& item) { return item.state == HostMemoryState::kPending; });
}

void HostMemoryLocker::unlock(const std::vector<std::span<std::byte>>& pieces) {
  for (const std::span<std::byte> piece : pieces) device_.page_unlock(piece.data());
}

}  // namespace kvtier::transfer
