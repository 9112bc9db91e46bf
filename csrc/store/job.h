// Job: the handle of a put or get that the copy pool carries out. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "store/block_mover.h"
#include "store/outcome.h"

namespace kvtier {

class Job {
 public:
  enum class Kind : std::uint8_t { kPut, kGet, kSave, kLoad };

  Job(std::uint64_t job_id, Kind kind, std::shared_ptr<BlockMover> mover = nullptr)
      : job_id_(job_id), kind_(kind), mover_(std::move(mover)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Unique within its store.
  std::uint64_t job_id() const { return job_id_; }
  Kind kind() const { return kind_; }
  /// Of a save or load; null for others.
  const std::shared_ptr<BlockMover>& mover() const { return mover_; }
  /// Once true, the store touches none of the job's buffers any more. Does not block.
  bool is_ended() const { return is_ended_.load(std::memory_order_acquire); }
  /// Not ok only when the store itself broke. Requires is_ended().
  const Status& status() const {
    KVTIER_CHECK(is_ended());
    return status_;
  }
  /// One a key. Requires is_ended().
  const std::vector<Outcome>& outcomes() const {
    KVTIER_CHECK(is_ended());
    return outcomes_;
  }

  /// Loads: positions in the keys whose engine memory was touched and holds nothing to rely on.
  /// Requires is_ended().
  const std::vector<std::size_t>& undefined_indices() const {
    KVTIER_CHECK(is_ended());
    return undefined_indices_;
  }

  /// For the store, once.
  void end(Status status, std::vector<Outcome> outcomes,
           std::vector<std::size_t> undefined_indices = {}) {
    KVTIER_CHECK(!is_ended());
    status_ = std::move(status);
    outcomes_ = std::move(outcomes);
    undefined_indices_ = std::move(undefined_indices);
    is_ended_.store(true, std::memory_order_release);
  }

 private:
  // Constant after construction.
  const std::uint64_t job_id_;
  const Kind kind_;
  const std::shared_ptr<BlockMover> mover_;
  // Constant once the job has ended.
  Status status_ = Status::ok();
  std::vector<Outcome> outcomes_;
  std::vector<std::size_t> undefined_indices_;
  // Release by the last step of the job, acquire by whoever then reads results and buffers.
  std::atomic<bool> is_ended_{false};
};

inline const char* job_kind_word(Job::Kind kind) {
  switch (kind) {
    case Job::Kind::kPut:
      return "put";
    case Job::Kind::kGet:
      return "get";
    case Job::Kind::kSave:
      return "save";
    case Job::Kind::kLoad:
      return "load";
  }
  return "";
}

}  // namespace kvtier
