// prefetch: promotes blocks from disk to host before anyone asks, behind the reads that somebody
// waits for. Thread-safe.
#include <algorithm>
#include <deque>

#include "store/store_impl.h"

namespace kvtier {

using store::GiveWay;
using store::Load;
using store::wait_until;

namespace {

// Reads of all prefetches together, so that a get's read finds a short queue at the device: blocks,
// or as many more as the bytes of small ones need to keep it busy.
constexpr std::uint64_t kPrefetchLoads = 4;
constexpr std::uint64_t kPrefetchBytes = 4ull << 20;
// Small blocks are checked and started a part of those at a time: each turn costs switches of
// threads, and neighbours that are started together become one read.
constexpr std::size_t kTurnsAWindow = 2;

std::uint64_t window_bytes(std::uint64_t slot_bytes) {
  return std::max(kPrefetchLoads * slot_bytes, kPrefetchBytes);
}

}  // namespace

struct Store::Impl::PrefetchCall {
  struct Started {
    BlockKey key;
    std::shared_ptr<Load> load;
  };
  const std::uint32_t namespace_index;
  const Namespace& space;
  std::deque<Started> started;  // Loads under way, oldest first.
};

Task<Store::Impl::Outcomes> Store::Impl::run_prefetch(std::span<const BlockKey> keys,
                                                      std::uint32_t namespace_index,
                                                      TimeNs deadline_ns, Flow& flow) {
  PrefetchCall call{namespace_index, namespaces_.at(namespace_index), {}};
  co_await GiveWay(flow);
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  const std::uint64_t bytes_max = window_bytes(slot_bytes);
  const std::size_t turn_loads = bytes_max / slot_bytes / kTurnsAWindow;
  const std::uint64_t turn_bytes = turn_loads * slot_bytes;
  std::size_t next = 0;
  bool is_in_time = true;
  while (is_in_time && !flow.is_cancelled() && (next < keys.size() || !call.started.empty())) {
    // Reads that somebody waits for come first. Either room for some more, or the oldest are there.
    // A prefetch that has nothing under way gets its turn beside one that fills the window.
    const auto can_start = [this, &call, &keys, &next, &flow, bytes_max, turn_bytes] {
      const std::uint64_t limit_bytes = call.started.empty() ? 2 * bytes_max : bytes_max;
      return next < keys.size() && !flow.is_cancelled() && disk_->is_readable() &&
             loader_->num_reading() <= loader_->num_prefetch_reading() &&
             prefetch_load_bytes_ + turn_bytes <= limit_bytes;
    };
    const auto is_oldest_settled = [this, &call] {
      return !call.started.empty() && is_settled(*call.started.front().load);
    };
    const auto can_finish = [this, &call, &is_oldest_settled, turn_loads] {
      const std::size_t num = std::min(call.started.size(), turn_loads);
      return is_oldest_settled() && is_settled(*call.started[num - 1].load);
    };
    const auto can_go_on = [this, &can_start, &can_finish] {
      return !disk_->is_readable() || can_finish() || can_start();
    };
    is_in_time = co_await wait_until(flow, can_go_on, deadline_ns);
    if (!is_in_time || flow.is_cancelled() || !disk_->is_readable()) break;
    if (can_finish()) {
      for (std::size_t i = 0; i < turn_loads && is_oldest_settled(); ++i) {
        finish_prefetch(call, flow);
      }
    }
    while (can_start()) {
      for (std::size_t j = 0; j < turn_loads && next < keys.size(); ++j, ++next) {
        (void)start_prefetch(call, keys[next]);
      }
    }
    changed();
    co_await GiveWay(flow);
  }
  while (!call.started.empty()) {
    loader_->leave(call.started.front().load);
    call.started.pop_front();
    prefetch_load_bytes_ -= slot_bytes;
  }
  changed();
  co_return Outcomes();
}

/// Reads a block into a host slot; one that is gone, in host or being read already, or for which
/// there is no slot, is skipped.
bool Store::Impl::start_prefetch(PrefetchCall& call, const BlockKey& key) {
  const EntryIndex entry = index_.find(call.namespace_index, key);
  if (entry == kNoEntry) return false;
  const store::BlockEntry& block = index_.at(entry);
  const bool is_wanted =
      block.is_resident(kDisk) && block.tier_state(kHost) == store::CopyState::kAbsent;
  if (!is_wanted || loader_->is_loading(entry)) return false;
  const auto slot = host_->reserve(*call.space.host_class, entry);
  if (!slot) return false;
  life_.begin_fill(entry, kHost, *slot);
  const std::span<std::byte> buffer = host_->bytes(*slot).subspan(0, call.space.slot_bytes);
  call.started.push_back({key, loader_->start_prefetch(entry, buffer)});
  prefetch_load_bytes_ += call.space.slot_bytes;
  return true;
}

/// Checks the oldest load, unless a get that joined it has, and leaves it.
void Store::Impl::finish_prefetch(PrefetchCall& call, Flow& flow) {
  const PrefetchCall::Started first = call.started.front();
  call.started.pop_front();
  prefetch_load_bytes_ -= call.space.slot_bytes;
  verify(*first.load, call.space, first.key, flow);
  const bool is_failure =
      first.load->state == Load::State::kFailed &&
      (first.load->outcome == Outcome::kCorrupt || first.load->outcome == Outcome::kFailed);
  if (is_failure) ++disk_space_.stats.load_failures;
  if (first.load->state == Load::State::kReady) ++stats_.jobs.prefetched_blocks;
  loader_->leave(first.load);
}

}  // namespace kvtier
