// Page-locked ranges: in pieces, all or none (user report F3).
#include "transfer/page_locked_ranges.h"

#include <doctest/doctest.h>

#include <vector>

#include "device/device_double.h"
#include "device/host_device.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

using transfer::PageLockedRanges;

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
  CHECK(ranges.borders() ==
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
  using Reach = PageLockedRanges::Reach;
  CHECK(ranges.contains(memory.data(), 100));
  CHECK_FALSE(ranges.contains(memory.data(), 100, Reach::kKernels));
  CHECK(ranges.contains(memory.data() + 100, 100, Reach::kKernels));
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
