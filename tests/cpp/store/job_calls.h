// JobCall: a put or get as a job together with the buffers that belong to it. One thread a call.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store_world.h"

namespace kvtier::testing {

struct JobCall {
  std::uint64_t first = 0;
  std::size_t block_bytes = 0;
  std::vector<std::vector<std::byte>> buffers;
  std::shared_ptr<Job> job;  // Null: the store refused the call.

  const std::vector<Outcome>& outcomes() const { return job->outcomes(); }
};

struct BlockRun {
  std::uint32_t space = 0;
  std::uint64_t first = 0;
  std::size_t num_blocks = 0;
  std::size_t block_bytes = 0;
};

inline const std::vector<std::byte>& canary_of(std::size_t block_bytes) {
  static thread_local std::vector<std::byte> canary;
  canary.assign(block_bytes, std::byte{0x5c});
  return canary;
}

inline JobCall start_put(Store& store, const BlockRun& run, TimeNs timeout_ns,
                         std::optional<BlockKey> parent = {}, std::uint64_t generation = 0,
                         std::function<void()> on_end = {}) {
  JobCall call{run.first, run.block_bytes, {}, nullptr};
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < run.num_blocks; ++i) {
    call.buffers.push_back(payload_of(run.first + i, run.block_bytes, generation));
  }
  for (const auto& buffer : call.buffers) sources.push_back(buffer.data());
  const auto keys = keys_of(run.first, run.num_blocks);
  PutRequest request;
  request.namespace_index = run.space;
  request.keys = keys;
  request.sources = sources;
  request.parent = parent;
  request.timeout_ns = timeout_ns;
  auto job = store.put_async(request, std::move(on_end));
  if (job.is_ok()) call.job = std::move(job).value();
  return call;
}

inline JobCall start_get(Store& store, const BlockRun& run, TimeNs timeout_ns,
                         bool is_prefix = true, std::function<void()> on_end = {}) {
  JobCall call{run.first, run.block_bytes, {}, nullptr};
  std::vector<std::byte*> targets;
  call.buffers.assign(run.num_blocks, canary_of(run.block_bytes));
  for (auto& buffer : call.buffers) targets.push_back(buffer.data());
  const auto keys = keys_of(run.first, run.num_blocks);
  GetRequest request;
  request.namespace_index = run.space;
  request.keys = keys;
  request.targets = targets;
  request.is_prefix = is_prefix;
  request.timeout_ns = timeout_ns;
  auto job = store.get_async(request, std::move(on_end));
  if (job.is_ok()) call.job = std::move(job).value();
  return call;
}

/// Whether a get's blocks that are done have the bytes of generation 0, and nothing else changed.
inline bool has_right_bytes(const JobCall& get) {
  for (std::size_t i = 0; i < get.buffers.size(); ++i) {
    const bool is_done = get.outcomes()[i] == Outcome::kDone;
    const auto expected =
        is_done ? payload_of(get.first + i, get.block_bytes) : canary_of(get.block_bytes);
    if (get.buffers[i] != expected) return false;
  }
  return true;
}

}  // namespace kvtier::testing
