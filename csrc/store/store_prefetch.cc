// prefetch: promotes blocks from disk to host before anyone asks, behind the reads that somebody
// waits for. Thread-safe.
#include <deque>

#include "store/store_impl.h"

namespace kvtier {

using store::GiveWay;
using store::Load;
using store::wait_until;

namespace {

// Reads of all prefetches together, so that a get's read finds a short queue at the device.
constexpr std::size_t kPrefetchLoadsMax = 4;

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
  std::size_t next = 0;
  bool is_in_time = true;
  while (is_in_time && !flow.is_cancelled() && (next < keys.size() || !call.started.empty())) {
    // Reads that somebody waits for come first. Either room for one more, or the oldest is there.
    const auto can_go_on = [this, &call, &keys, next] {
      if (!disk_->is_readable()) return true;
      if (!call.started.empty() && is_settled(*call.started.front().load)) return true;
      const bool is_disk_free = loader_->num_reading() <= num_prefetch_loads_;
      return next < keys.size() && is_disk_free && num_prefetch_loads_ < kPrefetchLoadsMax;
    };
    is_in_time = co_await wait_until(flow, can_go_on, deadline_ns);
    if (!is_in_time || flow.is_cancelled() || !disk_->is_readable()) break;
    if (!call.started.empty() && is_settled(*call.started.front().load)) {
      finish_prefetch(call, flow);
      co_await GiveWay(flow);
    } else {
      KVTIER_CHECK(next < keys.size());
      (void)start_prefetch(call, keys[next]);
      ++next;
    }
  }
  while (!call.started.empty()) {
    loader_->leave(call.started.front().load);
    call.started.pop_front();
    --num_prefetch_loads_;
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
  call.started.push_back({key, loader_->start(entry, buffer, true)});
  ++num_prefetch_loads_;
  changed();
  return true;
}

/// Checks the oldest load, unless a get that joined it has, and leaves it.
void Store::Impl::finish_prefetch(PrefetchCall& call, Flow& flow) {
  const PrefetchCall::Started first = call.started.front();
  call.started.pop_front();
  --num_prefetch_loads_;
  verify(*first.load, call.space, first.key, flow);
  const bool is_failure =
      first.load->state == Load::State::kFailed &&
      (first.load->outcome == Outcome::kCorrupt || first.load->outcome == Outcome::kFailed);
  if (is_failure) ++disk_space_.stats.load_failures;
  if (first.load->state == Load::State::kReady) ++stats_.jobs.prefetched_blocks;
  loader_->leave(first.load);
  changed();
}

}  // namespace kvtier
