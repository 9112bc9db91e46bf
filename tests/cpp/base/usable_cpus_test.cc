// CPU limits from invented /proc and control-group trees.
#include "base/usable_cpus.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "testing/temporary_folder.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

class FakeMachine {
 public:
  const std::string& root() const { return folder_.path(); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  std::optional<double> quota() const { return cpu_quota(root()); }

 private:
  TemporaryFolder folder_;
};

FakeMachine& with_v2(FakeMachine& fake) {
  fake.write("proc/self/mountinfo",
             "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate");
  fake.write("proc/self/cgroup", "0::/user/job");
  return fake;
}

}  // namespace

TEST_CASE("F13: the least quota of a group and its ancestors counts") {
  FakeMachine fake;
  CHECK_FALSE(fake.quota().has_value());
  with_v2(fake);
  CHECK_FALSE(fake.quota().has_value());
  fake.write("sys/fs/cgroup/user/cpu.max", "max 100000");
  CHECK_FALSE(fake.quota().has_value());
  fake.write("sys/fs/cgroup/user/job/cpu.max", "250000 100000");
  CHECK(fake.quota() == 2.5);
  fake.write("sys/fs/cgroup/user/cpu.max", "150000 100000");
  CHECK(fake.quota() == 1.5);
  fake.write("sys/fs/cgroup/cpu.max", "1000 100000");
  CHECK(fake.quota() == 0.01);
}

TEST_CASE("F13: a quota of the first version counts, and its no limit does not") {
  FakeMachine fake;
  fake.write("proc/self/mountinfo",
             "35 31 0:32 / /memory rw - cgroup cgroup rw,memory\n"
             "32 31 0:29 / /my\\040cpus rw - cgroup cgroup rw,cpu,cpuacct");
  fake.write("proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job\n0::/");
  fake.write("my cpus/job/cpu.cfs_quota_us", "-1");
  fake.write("my cpus/job/cpu.cfs_period_us", "100000");
  CHECK_FALSE(fake.quota().has_value());
  fake.write("my cpus/job/cpu.cfs_quota_us", "200000");
  CHECK(fake.quota() == 2.0);
}

TEST_CASE("a container that sees only its own group finds the quota at the mount's top") {
  FakeMachine fake;
  fake.write("proc/self/mountinfo", "31 23 0:28 /docker/abc /cgroup ro - cgroup2 cgroup rw");
  fake.write("cgroup/cpu.max", "300000 100000");
  for (const char* group : {"/docker/abc", "/../../elsewhere", "/docker/other", "/docker/abcd"}) {
    CAPTURE(group);
    fake.write("proc/self/cgroup", std::string("0::") + group);
    CHECK(fake.quota() == 3.0);
  }
}

TEST_CASE("damaged kernel files are passed over") {
  FakeMachine fake;
  const std::string texts[] = {
      "",   std::string(2, '\0'),        "31 23", "a b c d e - cgroup2", "0::", "::::", "-",
      "\\", "a b c d /\\9 - cgroup2 x y"};
  for (const std::string& text : texts) {
    fake.write("proc/self/mountinfo", text);
    fake.write("proc/self/cgroup", text);
    CHECK_FALSE(fake.quota().has_value());
  }
  with_v2(fake);
  for (const char* text : {"", "max", "0 0", "-5 100000", "100000 0", "1e5 100000", "a b"}) {
    CAPTURE(text);
    fake.write("sys/fs/cgroup/user/job/cpu.max", text);
    CHECK_FALSE(fake.quota().has_value());
  }
}

TEST_CASE("F13: one allowed CPU is one usable CPU") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  const std::uint32_t num_before = usable_cpus();
  CHECK(num_before >= 1);
  CHECK(num_before <= static_cast<std::uint32_t>(CPU_COUNT(&before)));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  CHECK(usable_cpus() == 1);
  REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
  CHECK(usable_cpus() == num_before);
}
