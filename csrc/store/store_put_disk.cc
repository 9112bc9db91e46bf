// put without a host slot: through staging buffers straight to disk, a window at a time.
// Thread-safe.
#include <cstring>
#include <utility>

#include "store/put_call.h"

namespace kvtier {

using store::GiveWay;
using store::wait_until;

namespace {

// A job gives way after so many bytes.
constexpr std::uint64_t kTurnBytes = 4ull << 20;
// The pump is told of so many bytes at once: each time costs a switch of threads, and neighbours
// that it sees together become one write.
constexpr std::uint64_t kToldBytes = 512ull << 10;

}  // namespace

Task<void> Store::Impl::fill_disk_blocks(PutCall& call, Flow& flow) {
  const std::uint64_t slot_bytes = call.space.slot_bytes;
  std::uint64_t held_bytes = 0;
  std::uint64_t untold_bytes = 0;
  const auto tell_pump = [this, &untold_bytes] {
    if (std::exchange(untold_bytes, 0) > 0) changed();
  };
  std::uint64_t turn_bytes = kTurnBytes;  // The first copy is not the submitter's.
  std::size_t first_open = 0;             // Blocks before it have ended, or hold no buffer.
  for (std::size_t i = 0; i < call.blocks.size(); ++i) {
    PutBlock& block = call.blocks[i];
    if (!block.takes_bytes()) continue;
    if (turn_bytes >= kTurnBytes) {
      turn_bytes = 0;
      tell_pump();
      co_await GiveWay(flow);
    }
    const bool is_window_full = held_bytes + slot_bytes > staging_->window_bytes();
    if (is_window_full || untold_bytes >= kToldBytes) tell_pump();
    while (held_bytes > 0 && held_bytes + slot_bytes > staging_->window_bytes()) {
      while (!call.blocks[first_open].is_in_window) ++first_open;
      const auto is_ended = [fill = call.blocks[first_open].fill] { return fill->is_ended; };
      (void)co_await wait_until(flow, is_ended, call.deadline_ns);
      held_bytes -= slot_bytes;
      ++first_open;
    }
    // A child that came to the disk before its parent would be declined.
    const auto is_parent_queued = [this, entry = block.entry] {
      return is_parent_settled(entry) || index_.at(index_.at(entry).parent).is_queued;
    };
    if (!is_parent_queued()) tell_pump();
    const bool has_parent = co_await wait_until(flow, is_parent_queued, call.deadline_ns);
    std::optional<std::span<std::byte>> buffer;
    if (has_parent) {
      buffer = co_await reserve_staging(slot_bytes, held_bytes > 0, call.deadline_ns, flow);
    }
    if (!buffer) {
      give_up_disk_block(block, flow.early_outcome());
      continue;
    }
    held_bytes += slot_bytes;
    turn_bytes += slot_bytes;
    untold_bytes += slot_bytes;
    block.is_in_window = true;
    fill_disk_block(call, i, *buffer, flow);
  }
  tell_pump();
  for (PutBlock& block : call.blocks) {
    if (!block.is_in_window) continue;
    const auto is_ended = [&block] { return block.fill->is_ended; };
    const bool is_in_time = co_await wait_until(flow, is_ended, call.deadline_ns);
    block.outcome = is_in_time ? block.fill->outcome : flow.early_outcome();
  }
}

/// Nothing of it was copied: a new key is absent again, what was stored before stays.
void Store::Impl::give_up_disk_block(PutBlock& block, Outcome outcome) {
  const bool is_new = block.kind == PutBlock::Kind::kNew;
  const EntryIndex entry = block.entry;
  if (is_new && !index_.at(entry).is_detached) life_.remove_family(entry);
  end_fill(block, is_new ? outcome : Outcome::kDone);
}

void Store::Impl::fill_disk_block(PutCall& call, std::size_t i, std::span<std::byte> buffer,
                                  Flow& flow) {
  PutBlock& block = call.blocks[i];
  flow.lock().unlock();
  block.checksums = store::copy_and_checksum_block(call.space, call.request.keys[i], buffer.data(),
                                                   call.request.sources[i]);
  std::memset(buffer.data() + call.space.block_bytes, 0,
              call.space.slot_bytes - call.space.block_bytes);
  flow.lock().lock();
  if (index_.at(block.entry).is_detached) {
    staging_->release(buffer);
    return end_fill(block, Outcome::kDeclined);
  }
  const bool is_new = block.kind == PutBlock::Kind::kNew;
  if (!is_new && !index_.has_checksums(block.entry, block.checksums)) {
    staging_->release(buffer);
    return end_fill(block, Outcome::kDone);  // Other bytes than those that are stored.
  }
  if (is_new) index_.set_checksums(block.entry, block.checksums);
  // The write owns the buffer from here on, also when this call gives up waiting.
  const auto fill = block.fill;
  const EntryIndex entry = block.entry;
  const auto on_end = [this, fill, entry, buffer](Outcome outcome) {
    staging_->release(buffer);
    fill->outcome = outcome;
    fill->is_ended = true;
    fills_.erase(entry);
    changed();
  };
  if (is_new) {
    writes_->submit_direct(entry, buffer, on_end);
  } else {
    writes_->rewrite(entry, buffer, on_end);
  }
}

Task<std::optional<std::span<std::byte>>> Store::Impl::reserve_staging(std::uint64_t num_bytes,
                                                                       bool is_holding,
                                                                       TimeNs deadline_ns,
                                                                       Flow& flow) {
  std::optional<std::span<std::byte>> buffer;
  // Whoever holds buffers need not stand in line behind those who hold none, but waits for its own
  // writes to give some back.
  if (is_holding) buffer = staging_->reserve(0, num_bytes);
  if (buffer) co_return buffer;
  changed();  // Those writes may not be known to the pump yet.
  const std::uint64_t ticket = staging_->enter_line();
  const auto is_reserved = [this, &buffer, ticket, num_bytes] {
    if (!buffer) buffer = staging_->reserve(ticket, num_bytes);
    return buffer.has_value();
  };
  (void)co_await wait_until(flow, is_reserved, deadline_ns);
  staging_->leave_line(ticket);
  changed();
  co_return buffer;
}

}  // namespace kvtier
