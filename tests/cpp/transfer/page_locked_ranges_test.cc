// Page-locked ranges: in pieces, all or none (user report F3).
#include "transfer/page_locked_ranges.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "device/device_double.h"
#include "device/host_device.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

using transfer::PageLockedRanges;
using transfer::Reach;

TEST_CASE("a piece that is refused takes the pieces before it along") {
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(1000);
  PageLockedRanges ranges(host, 100);
  host.set_page_lock_limit_bytes(250);
  const Status refused = ranges.lock(memory);
  CHECK(refused.code() == StatusCode::kExhausted);
  CHECK(refused.message().find("locked_bytes=200 need_bytes=1000") != std::string::npos);
  CHECK(host.page_locked_bytes() == 0);
  CHECK(ranges.num_bytes() == 0);
  CHECK_FALSE(ranges.contains(memory.data(), 1));
  // One refusal spoils nothing: what fits is locked later.
  CHECK(host.failure().is_ok());
  CHECK(ranges.lock(std::span(memory).first(250)).is_ok());
  CHECK(host.page_locked_bytes() == 250);
  CHECK(ranges.num_bytes() == 250);
}

TEST_CASE("memory is locked in pieces and is one range") {
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(1050);
  {
    PageLockedRanges ranges(host, 100);
    REQUIRE(ranges.lock(memory).is_ok());
    CHECK(host.page_locked_bytes() == 1050);
    CHECK(ranges.contains(memory.data(), 1050));
    CHECK(ranges.contains(memory.data() + 95, 10));
    CHECK(ranges.contains(memory.data() + 1049, 1));
    CHECK_FALSE(ranges.contains(memory.data() + 1049, 2));
    CHECK_FALSE(ranges.contains(memory.data() + 1050, 1));
    CHECK_FALSE(ranges.contains(memory.data() + 1, UINT64_MAX));
    // Another length is other memory.
    ranges.remove(std::span(memory).first(100));
    CHECK(ranges.num_bytes() == 1050);
    ranges.remove(memory);
    CHECK(host.page_locked_bytes() == 0);
    REQUIRE(ranges.lock(memory).is_ok());
  }
  CHECK(host.page_locked_bytes() == 0);
}

TEST_CASE("memory that begins at one place is told apart by its length and counted") {
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(300);
  const auto whole = std::span(memory);
  PageLockedRanges ranges(host, 100);
  REQUIRE(ranges.lock(whole).is_ok());
  // Noted once more, by who does not know, and a part of it.
  ranges.add(whole);
  ranges.add(whole.first(50));
  CHECK(ranges.contains(memory.data(), 300));
  ranges.remove(whole.first(50));
  CHECK(ranges.contains(memory.data(), 300));
  ranges.remove(whole);
  CHECK(ranges.contains(memory.data(), 300));
  CHECK(host.page_locked_bytes() == 300);
  ranges.remove(whole);
  CHECK_FALSE(ranges.contains(memory.data(), 1));
  CHECK(host.page_locked_bytes() == 0);
}

TEST_CASE("pieces and ranges have borders") {
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(1000);
  PageLockedRanges ranges(host, 100);
  REQUIRE(ranges.lock(std::span(memory).first(250)).is_ok());
  ranges.add(std::span(memory).subspan(250, 50));
  const std::byte* begin = memory.data();
  CHECK(ranges.view()->borders ==
        std::vector<const std::byte*>{begin, begin + 100, begin + 200, begin + 250, begin + 300});
}

TEST_CASE("registered memory is told from memory that kernels reach") {
  SimClock clock;
  HostDevice host(clock);
  DeviceDouble device(host);
  device.on_info = [](DeviceInfo& info) { info.can_kernels_reach_registered = false; };
  std::vector<std::byte> memory(300);
  PageLockedRanges ranges(device);
  REQUIRE(ranges.lock(std::span(memory).first(100)).is_ok());
  ranges.add(std::span(memory).subspan(100, 100));
  CHECK(ranges.contains(memory.data(), 100));
  CHECK_FALSE(ranges.contains(memory.data(), 100, Reach::kKernels));
  CHECK(ranges.contains(memory.data() + 100, 100, Reach::kKernels));
}

TEST_CASE("a view stays as it was, and the next one has what changed") {
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(200);
  PageLockedRanges ranges(host);
  const auto none = ranges.view();
  REQUIRE(ranges.lock(std::span(memory).first(100)).is_ok());
  const auto one = ranges.view();
  CHECK(ranges.view() == one);  // Not made again for each who asks.
  std::byte* const begin = memory.data();
  CHECK(none->reach_of({&begin, 1}, 1) == Reach::kNone);
  CHECK(one->reach_of({&begin, 1}, 100) == Reach::kKernels);
  ranges.remove(std::span(memory).first(100));
  CHECK(one->borders.size() == 2);
  CHECK(ranges.view()->ranges.empty());
}

TEST_CASE("places in overlapping ranges are found as by looking at every range") {
  constexpr std::uint64_t kSeed = 2024;
  Random random(kSeed);
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(500);
  for (int turn = 0; turn < 300; ++turn) {
    CAPTURE(kSeed);
    CAPTURE(turn);
    DeviceDouble device(host);
    bool can_reach = false;
    device.on_info = [&](DeviceInfo& info) { info.can_kernels_reach_registered = can_reach; };
    PageLockedRanges ranges(device);
    std::vector<std::tuple<std::size_t, std::size_t, bool>> known;
    for (int count = 0; count < 6; ++count) {
      const std::size_t first = random.next() % 400;
      const std::size_t length = 1 + random.next() % (500 - first);
      const bool is_twice = std::any_of(known.begin(), known.end(), [&](const auto& it) {
        return std::get<0>(it) == first && std::get<1>(it) == length;
      });
      if (is_twice) continue;
      can_reach = random.next() % 2 == 0;
      ranges.adopt(std::span(memory).subspan(first, length), {});
      known.emplace_back(first, length, can_reach);
    }
    std::vector<std::byte*> places;
    const std::uint64_t length_bytes = 1 + random.next() % 40;
    auto wanted = Reach::kKernels;
    for (int count = 0; count < 4; ++count) {
      const std::size_t place = random.next() % 300;
      places.push_back(memory.data() + place);
      auto reach = Reach::kNone;
      for (const auto& [first, length, is_reached] : known) {
        if (place < first || place + length_bytes > first + length) continue;
        reach = std::max(reach, is_reached ? Reach::kKernels : Reach::kCopies);
      }
      wanted = std::min(wanted, reach);
    }
    CHECK(ranges.view()->reach_of(places, length_bytes) == wanted);
  }
}

TEST_CASE("memory that somebody else locked is known and left locked") {
  SimClock clock;
  HostDevice host(clock);
  std::vector<std::byte> memory(300);
  REQUIRE(host.page_lock(memory).is_ok());
  {
    PageLockedRanges ranges(host);
    ranges.add(memory);
    CHECK(ranges.contains(memory.data(), 300));
    CHECK(ranges.num_bytes() == 300);
  }
  CHECK(host.page_locked_bytes() == 300);
}

}  // namespace
}  // namespace kvtier::testing
