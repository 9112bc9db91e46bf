// Uploads fragment tables and refers to them. Thread-safe.
#include "device/cuda_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace kvtier {
namespace {

constexpr std::uint64_t kMemoryBytesMin = 4096;

// Fragments, then parts, as kernels read them.
std::vector<std::byte> image_of(const FragmentTable& table) {
  const std::size_t num_fragments = table.fragments().size();
  std::vector<std::byte> image(num_fragments * sizeof(cuda::KernelFragment) +
                               table.parts().size() * sizeof(cuda::KernelPart));
  std::byte* place = image.data();
  for (std::size_t index = 0; index < num_fragments; ++index) {
    const Fragment& fragment = table.fragments()[index];
    const cuda::KernelFragment seen{reinterpret_cast<CudaAddress>(fragment.base),
                                    fragment.stride_bytes, table.fragment_offsets()[index],
                                    fragment.length_bytes};
    std::memcpy(place, &seen, sizeof seen);
    place += sizeof seen;
  }
  for (const FragmentTable::Part& part : table.parts()) {
    const cuda::KernelPart seen{part.offset_bytes, part.length_bytes, part.first_leaf, 0};
    std::memcpy(place, &seen, sizeof seen);
    place += sizeof seen;
  }
  return image;
}

// A warp's leaves in as few turns as can be, all of about the same length: the digests of a turn
// travel together, and a link takes a whole line at little more than the cost of one digest.
unsigned choose_leaves_per_turn(std::uint32_t num_leaves, std::uint32_t num_ctas) {
  constexpr unsigned kLeavesPerTurnMax = 128 / sizeof(std::uint64_t);
  static_assert(kLeavesPerTurnMax <= cuda::kLanesPerWarp);
  const unsigned num_warps = num_ctas * (cuda::kThreadsPerCta / cuda::kLanesPerWarp);
  const unsigned per_warp = std::max(1u, (num_leaves + num_warps - 1) / num_warps);
  const unsigned num_turns = (per_warp + kLeavesPerTurnMax - 1) / kLeavesPerTurnMax;
  return (per_warp + num_turns - 1) / num_turns;
}

}  // namespace

void CudaTables::destroy_all() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [table_id, entry] : entries_) (void)driver_.memory_free(entry->memory);
  for (const auto& [memory_bytes, memory] : spare_) (void)driver_.memory_free(memory);
  entries_.clear();
  spare_.clear();
}

Result<CudaAddress> CudaTables::take_memory(std::uint64_t memory_bytes) {
  const auto spare = spare_.find(memory_bytes);
  if (spare != spare_.end()) {
    const CudaAddress memory = spare->second;
    spare_.erase(spare);
    return memory;
  }
  if (memory_bytes > kTableBytesMax - allocated_bytes_) {
    return Status(StatusCode::kExhausted,
                  "cannot keep fragment table: table_bytes_max=" + std::to_string(kTableBytesMax));
  }
  CudaAddress memory = 0;
  const CudaResult allocated = driver_.memory_allocate(&memory, memory_bytes);
  if (allocated != kCudaSuccess) return cuda_status(driver_, allocated, "keep fragment table");
  allocated_bytes_ += memory_bytes;
  return memory;
}

Result<std::uint32_t> CudaTables::create(const FragmentTable& table, CudaStream upload_stream) {
  const std::vector<std::byte> image = image_of(table);
  const std::uint64_t memory_bytes =
      std::bit_ceil(std::max<std::uint64_t>(image.size(), kMemoryBytesMin));
  std::lock_guard<std::mutex> lock(mutex_);
  Result<CudaAddress> memory = take_memory(memory_bytes);
  if (!memory.is_ok()) return memory.status();
  CudaResult copied = driver_.copy(memory.value(), reinterpret_cast<CudaAddress>(image.data()),
                                   image.size(), upload_stream);
  if (copied == kCudaSuccess) copied = driver_.stream_synchronize(upload_stream);
  if (copied != kCudaSuccess) {
    spare_.emplace(memory_bytes, memory.value());
    return cuda_status(driver_, copied, "keep fragment table");
  }
  entries_[++last_table_id_] =
      std::make_shared<const Entry>(Entry{table, memory.value(), memory_bytes});
  return last_table_id_;
}

void CudaTables::destroy(std::uint32_t table_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(table_id);
  if (found == entries_.end()) return;
  spare_.emplace(found->second->memory_bytes, found->second->memory);
  entries_.erase(found);
}

Result<std::uint64_t> CudaTables::fill(const BlockCopy& op,
                                       cuda::KernelArguments& arguments) const {
  std::shared_ptr<const Entry> entry;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(op.table_id);
    if (found != entries_.end()) entry = found->second;
  }
  if (entry == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot use unknown fragment table: table_id=" + std::to_string(op.table_id));
  }
  const FragmentTable& table = entry->table;
  Status good = check_block_copy(op, table);
  if (!good.is_ok()) return good;
  const std::size_t num_fragments = table.fragments().size();
  arguments.fragments = reinterpret_cast<const cuda::KernelFragment*>(entry->memory);
  arguments.parts = reinterpret_cast<const cuda::KernelPart*>(
      entry->memory + num_fragments * sizeof(cuda::KernelFragment));
  arguments.digests = reinterpret_cast<unsigned long long*>(op.digests);
  arguments.num_fragments = static_cast<unsigned>(num_fragments);
  arguments.num_parts = static_cast<unsigned>(table.parts().size());
  arguments.equal_fragment_bytes = static_cast<unsigned>(table.equal_fragment_bytes());
  arguments.leaves_per_block = table.leaves_per_block();
  arguments.first_leaf = op.first_leaf;
  arguments.num_leaves = op.num_leaves;
  arguments.leaves_per_turn = choose_leaves_per_turn(op.num_leaves, op.num_ctas);
  arguments.padding = 0;
  std::uint64_t any_bits = table.alignment_bytes();
  for (std::size_t index = 0; index < op.places.size(); ++index) {
    const BlockPlace& place = op.places[index];
    arguments.places[index] = {place.block_id, reinterpret_cast<CudaAddress>(place.linear)};
    if (op.kind != BlockCopyKind::kHash) any_bits |= reinterpret_cast<CudaAddress>(place.linear);
  }
  return std::uint64_t{1} << std::countr_zero(any_bits);
}

}  // namespace kvtier
