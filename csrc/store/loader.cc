// Loads. Guarded by the store's mutex.
#include "store/loader.h"

#include <algorithm>
#include <cerrno>

namespace kvtier::store {
namespace {

/// The process is short of something; the medium was not even asked.
bool is_want_of_resources(const Status& status) {
  const int os_errno = status.os_errno();
  return os_errno == EMFILE || os_errno == ENFILE || os_errno == ENOMEM ||
         status.code() == StatusCode::kExhausted;
}

}  // namespace

std::shared_ptr<Load> Loader::join(EntryIndex entry) {
  const auto found = by_entry_.find(entry);
  if (found == by_entry_.end()) return nullptr;
  ++found->second->num_users;
  return found->second;
}

std::shared_ptr<Load> Loader::start(EntryIndex entry, std::span<std::byte> buffer,
                                    bool is_promotion) {
  KVTIER_CHECK(!by_entry_.contains(entry));
  const BlockEntry& block = life_.index().at(entry);
  KVTIER_CHECK(block.is_resident(TierId::kDisk));
  life_.hold(entry);
  auto load = std::make_shared<Load>();
  load->entry = entry;
  load->buffer = buffer;
  load->is_promotion = is_promotion;
  load->num_users = 1;
  load->start_ns = clock_.now_ns();
  const SlotRef slot = block.slot(TierId::kDisk);
  disk_.reads().begin(buffer.size());
  reading_.emplace(engine_.read_block(disk_.segment_id(slot), slot.slot_index, buffer), load);
  by_entry_.emplace(entry, load);
  return load;
}

std::shared_ptr<Load> Loader::start_prefetch(EntryIndex entry, std::span<std::byte> buffer) {
  auto load = start(entry, buffer, true);
  load->is_prefetch = true;
  ++num_prefetch_reading_;
  return load;
}

void Loader::begin_verify(Load& load) {
  KVTIER_CHECK(load.state == Load::State::kRead);
  load.state = Load::State::kVerifying;
}

void Loader::end_verify(Load& load, bool is_good) {
  KVTIER_CHECK(load.state == Load::State::kVerifying);
  BlockEntry& block = life_.index().at(load.entry);
  if (is_good) {
    load.state = Load::State::kReady;
    block.is_recovered = false;  // Proved: a later mismatch is rot, not a torn write.
    if (load.is_promotion && !block.is_detached) {
      life_.finish_fill(load.entry, TierId::kHost);
      by_entry_.erase(load.entry);  // It is a host hit from now on.
    }
    return;
  }
  TierStats& stats = life_.space(TierId::kDisk).stats;
  ++stats.corrupt;
  if (block.is_recovered) ++stats.torn;
  fail(load, Outcome::kCorrupt);
}

void Loader::leave(const std::shared_ptr<Load>& load) {
  KVTIER_CHECK(load->num_users > 0);
  --load->num_users;
  drop_if_unused(load);
}

bool Loader::finish(const disk::DiskResult& result, TimeNs now_ns) {
  const auto found = reading_.find(result.job_id);
  if (found == reading_.end()) return false;
  const std::shared_ptr<Load> load = found->second;
  reading_.erase(found);
  load->is_reading_ended = true;
  if (load->is_prefetch) --num_prefetch_reading_;
  // Rises slowly: most reads also wait behind others of the same call.
  const TimeNs read_ns = now_ns - load->start_ns;
  least_read_ns_ = least_read_ns_ == 0 ? read_ns : std::min(read_ns, least_read_ns_ * 65 / 64 + 1);
  disk_.reads().end(load->buffer.size(), result.status.is_ok() ? load->buffer.size() : 0);
  disk_.note_read_result(result.status, now_ns);
  if (result.status.is_ok()) {
    life_.space(TierId::kDisk).stats.bytes_read += load->buffer.size();
    load->state = Load::State::kRead;
  } else if (result.status.code() == StatusCode::kCancelled) {
    load->state = Load::State::kFailed;
    load->outcome = Outcome::kCancelled;
  } else if (is_want_of_resources(result.status)) {
    load->state = Load::State::kFailed;
    load->outcome = Outcome::kTimeout;  // It could not be tried in time; nothing is wrong with it.
  } else {
    fail(*load, Outcome::kFailed);
  }
  drop_if_unused(load);
  return true;
}

/// The stored bytes cannot be had: nobody shall be promised them again.
void Loader::fail(Load& load, Outcome outcome) {
  load.state = Load::State::kFailed;
  load.outcome = outcome;
  by_entry_.erase(load.entry);
  if (!life_.index().at(load.entry).is_detached) life_.remove_family(load.entry);
}

void Loader::drop_if_unused(const std::shared_ptr<Load>& load) {
  if (load->num_users > 0 || !load->is_reading_ended) return;
  const auto found = by_entry_.find(load->entry);
  if (found != by_entry_.end() && found->second == load) by_entry_.erase(found);
  if (!load->is_promotion) {
    staging_.release(load->buffer);
  } else if (load->state != Load::State::kReady) {
    const BlockEntry& block = life_.index().at(load->entry);
    if (!block.is_detached) life_.abort_fill(load->entry, TierId::kHost);
  }
  life_.unhold(load->entry);
}

}  // namespace kvtier::store
