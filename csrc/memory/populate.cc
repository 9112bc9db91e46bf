// Page faults in bulk. Thread-safe.
#include "memory/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/blocked_signals.h"

namespace kvtier {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif
// Below it a thread costs more than it saves.
constexpr std::size_t kThreadBytesMin = 8u << 20;

bool populate_pages(std::span<std::byte> pages) {
  // Without it the first use of each page takes it, only later.
  return pages.empty() || ::madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE) == 0;
}

std::span<std::byte> whole_pages(std::span<std::byte> memory, std::size_t page_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t first = (begin + page_bytes - 1) / page_bytes * page_bytes;
  const std::uintptr_t last = (begin + memory.size()) / page_bytes * page_bytes;
  if (last <= first) return {};
  return memory.subspan(first - begin, last - first);
}

}  // namespace

bool populate(std::span<std::byte> memory, std::size_t num_threads) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::span<std::byte> pages = whole_pages(memory, page_bytes);
  const std::size_t num_parts = std::clamp<std::size_t>(pages.size() / kThreadBytesMin, 1,
                                                        std::max<std::size_t>(1, num_threads));
  const std::size_t part_bytes =
      (pages.size() / page_bytes + num_parts - 1) / num_parts * page_bytes;
  // Relaxed: read after the threads were joined.
  std::atomic<bool> is_whole{true};
  const auto populate_part = [&is_whole](std::span<std::byte> part) {
    if (!populate_pages(part)) is_whole.store(false, std::memory_order_relaxed);
  };
  std::vector<std::thread> threads;
  for (std::size_t at = part_bytes; at < pages.size(); at += part_bytes) {
    const auto part = pages.subspan(at, std::min(part_bytes, pages.size() - at));
    const BlockedSignals blocked;
    try {
      threads.emplace_back([&populate_part, part] { populate_part(part); });
    } catch (const std::system_error&) {
      populate_part(part);
    }
  }
  populate_part(pages.first(std::min(part_bytes, pages.size())));
  for (std::thread& thread : threads) thread.join();
  return is_whole.load(std::memory_order_relaxed);
}

}  // namespace kvtier
