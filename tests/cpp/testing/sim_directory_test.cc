// The simulated directory keeps the contract of Directory.
#include <doctest/doctest.h>

#include "io/directory_conformance.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

TEST_CASE("the simulated directory keeps the contract") {
  SimClock clock;
  SimDisk disk(clock, {});
  check_directory_conformance([&disk] { return disk.make_directory(); });
}

}  // namespace
}  // namespace kvtier::testing
