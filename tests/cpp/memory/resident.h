// How much of a range the system has provided memory for. Thread-safe.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/populate.h"

namespace kvtier::testing {

inline std::uint64_t resident_bytes(std::span<std::byte> memory) {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(memory.size() / page_bytes);
  REQUIRE(mincore(memory.data(), memory.size(), pages.data()) == 0);
  std::uint64_t num_pages = 0;
  for (const unsigned char page : pages) num_pages += page & 1;
  return num_pages * page_bytes;
}

/// Whether this kernel provides memory on request.
inline bool can_populate() {
  std::vector<std::byte> memory(8192);
  const bool can = populate(memory, 1);
  if (!can) MESSAGE("skipped: this kernel provides no memory on request (MADV_POPULATE_WRITE)");
  return can;
}

}  // namespace kvtier::testing
