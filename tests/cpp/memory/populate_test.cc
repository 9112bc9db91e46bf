// Memory taken beforehand: there, and with what it held.
#include "memory/populate.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "memory/arena.h"
#include "memory/resident.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("populated memory is resident and keeps its bytes, whatever the number of threads") {
  for (const std::size_t num_threads : {0u, 1u, 3u, 64u}) {
    CAPTURE(num_threads);
    auto arena = Arena::create(48 << 20);
    REQUIRE(arena.is_ok());
    const auto memory = arena.value()->bytes(0, 48 << 20);
    std::memset(memory.data() + 5000, 0x5c, 100);
    CHECK(populate(memory.subspan(1, memory.size() - 2), num_threads) == can_populate());
    // The two pages at the ends belong to others in part; huge pages may bring them along.
    if (can_populate()) CHECK(resident_bytes(memory) >= memory.size() - 2 * 4096);
    for (std::size_t i = 5000; i < 5100; ++i) CHECK(memory[i] == std::byte{0x5c});
    CHECK(memory[20000] == std::byte{0});
  }
}

TEST_CASE("less than a page is nothing to populate") {
  std::vector<std::byte> memory(100);
  CHECK(populate(memory, 4));
  CHECK(populate({}, 4));
}
