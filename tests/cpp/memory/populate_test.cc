// Memory taken beforehand: there, and with what it held.
#include "memory/populate.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "memory/arena.h"

using namespace kvtier;

namespace {

std::size_t num_resident_pages(std::span<std::byte> memory) {
  std::vector<unsigned char> pages((memory.size() + 4095) / 4096);
  REQUIRE(::mincore(memory.data(), memory.size(), pages.data()) == 0);
  std::size_t num_pages = 0;
  for (const unsigned char page : pages) num_pages += page & 1;
  return num_pages;
}

}  // namespace

TEST_CASE("populated memory is resident and keeps its bytes, whatever the number of threads") {
  for (const std::size_t num_threads : {0u, 1u, 3u, 64u}) {
    CAPTURE(num_threads);
    auto arena = Arena::create(48 << 20);
    REQUIRE(arena.is_ok());
    const auto memory = arena.value()->bytes(0, 48 << 20);
    std::memset(memory.data() + 5000, 0x5c, 100);
    populate(memory.subspan(1, memory.size() - 2), num_threads);
    // The two pages at the ends belong to others in part; huge pages may bring them along.
    CHECK(num_resident_pages(memory) >= memory.size() / 4096 - 2);
    for (std::size_t i = 5000; i < 5100; ++i) CHECK(memory[i] == std::byte{0x5c});
    CHECK(memory[20000] == std::byte{0});
  }
}

TEST_CASE("less than a page is nothing to populate") {
  std::vector<std::byte> memory(100);
  populate(memory, 4);
  populate({}, 4);
}
