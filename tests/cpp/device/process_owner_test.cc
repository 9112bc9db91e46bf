// Whether a process knows itself from its parent.
#include "device/process_owner.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvtier::testing {
namespace {

TEST_CASE("a forked child is not the owner, and its parent still is") {
  const ProcessOwner owner;
  CHECK(owner.is_this_process());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(owner.is_this_process() ? 1 : 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(owner.is_this_process());
}

}  // namespace
}  // namespace kvtier::testing
