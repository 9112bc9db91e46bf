// Tests of arena mappings. Single-threaded; one test forks.
#include "memory/arena.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"

namespace kvtier {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

// Field of /proc/self/statm in bytes: 0 is mapped, 1 is resident.
std::uint64_t memory_bytes(int field) {
  std::ifstream file("/proc/self/statm");
  std::uint64_t num_pages = 0;
  for (int index = 0; index <= field; ++index) file >> num_pages;
  return num_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::unique_ptr<Arena> make_arena(std::uint64_t num_bytes) {
  Result<std::unique_ptr<Arena>> arena = Arena::create(num_bytes);
  REQUIRE_MESSAGE(arena.is_ok(), arena.status().to_string());
  return std::move(arena).value();
}

std::uint64_t resident_bytes_of(const Arena& arena) {
  const auto unit_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(arena.num_bytes() / unit_bytes);
  REQUIRE(::mincore(arena.base(), arena.num_bytes(), pages.data()) == 0);
  std::uint64_t num_resident = 0;
  for (const unsigned char page : pages) num_resident += page & 1u;
  return num_resident * unit_bytes;
}

// True when the kernel can read the address: write() looks at it without touching it ourselves.
bool is_readable(const std::byte* address) {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const ssize_t num_written = ::write(ends[1], address, 1);
  ::close(ends[0]);
  ::close(ends[1]);
  return num_written == 1;
}

TEST_CASE("an arena starts on a huge page and is rounded up to whole ones") {
  const auto arena = make_arena(5 * kMiB + 1);
  CHECK(arena->num_bytes() == 6 * kMiB);
  CHECK(reinterpret_cast<std::uintptr_t>(arena->base()) % (2 * kMiB) == 0);
  CHECK(arena->info().num_bytes == arena->num_bytes());
  CHECK(arena->info().is_huge_page_advised == arena->info().note.empty());
}

TEST_CASE("F8: without huge pages an arena works and says why") {
  REQUIRE(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
  auto created = Arena::create(4u << 20);
  REQUIRE(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0);
  REQUIRE(created.is_ok());
  const auto& arena = created.value();
  CHECK_FALSE(arena->info().is_huge_page_advised);
  CHECK(arena->info().note.find("switched off") != std::string::npos);
  std::memset(arena->base(), 7, 4u << 20);
  CHECK(arena->base()[(4u << 20) - 1] == std::byte{7});
}

TEST_CASE("an arena below a huge page is rounded up to pages") {
  const auto arena = make_arena(5000);
  const auto unit_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  CHECK(arena->num_bytes() == (5000 + unit_bytes - 1) / unit_bytes * unit_bytes);
  CHECK(!arena->info().is_huge_page_advised);
}

TEST_CASE("an arena of 0 bytes is empty") {
  const auto arena = make_arena(0);
  CHECK(arena->num_bytes() == 0);
  CHECK(arena->base() == nullptr);
  CHECK(arena->bytes(0, 0).empty());
  arena->release(0, 0);
  arena->leak();
}

TEST_CASE("an arena of 130 MiB maps no more than 2 MiB on top and gives all of it back") {
  const std::uint64_t before_bytes = memory_bytes(0);
  auto arena = make_arena(130 * kMiB);
  CHECK(memory_bytes(0) - before_bytes >= 130 * kMiB);
  CHECK(memory_bytes(0) - before_bytes <= 132 * kMiB);
  CHECK(arena->num_bytes() == 130 * kMiB);
  arena.reset();
  CHECK(memory_bytes(0) <= before_bytes + kMiB);
}

TEST_CASE("an arena takes memory only where it is touched") {
  const auto arena = make_arena(64 * kMiB);
  CHECK(resident_bytes_of(*arena) == 0);
  arena->base()[10 * kMiB] = std::byte{1};
  CHECK(resident_bytes_of(*arena) > 0);
  CHECK(resident_bytes_of(*arena) <= 2 * kMiB);
  std::memset(arena->base(), 1, 32 * kMiB);
  CHECK(resident_bytes_of(*arena) == 32 * kMiB);
}

TEST_CASE("released pages leave memory and read as zero, their neighbours stay") {
  const auto arena = make_arena(16 * kMiB);
  std::memset(arena->base(), 0x5a, 16 * kMiB);
  const auto unit_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  // Begins and ends inside a page: those two are not whole and stay.
  arena->release(4 * kMiB - 1, 8 * kMiB + 2);
  CHECK(resident_bytes_of(*arena) == 8 * kMiB);
  CHECK(arena->base()[4 * kMiB - 1] == std::byte{0x5a});
  CHECK(arena->base()[4 * kMiB] == std::byte{0});
  CHECK(arena->base()[12 * kMiB - 1] == std::byte{0});
  CHECK(arena->base()[12 * kMiB] == std::byte{0x5a});
  arena->release(1, unit_bytes);
  CHECK(arena->base()[1] == std::byte{0x5a});
  CHECK(arena->base()[unit_bytes] == std::byte{0x5a});
}

TEST_CASE("released memory that is page-locked still reads as zero") {
  const auto arena = make_arena(kMiB);
  if (::mlock(arena->base(), 16384) != 0) {
    MESSAGE("skipped: mlock is refused here, errno=" << errno);
    return;
  }
  std::memset(arena->base(), 0x5a, 16384);
  arena->release(0, 8192);
  CHECK(arena->base()[0] == std::byte{0});
  CHECK(arena->base()[8191] == std::byte{0});
  CHECK(arena->base()[8192] == std::byte{0x5a});
}

TEST_CASE("an arena beyond the machine's memory is a clear error") {
  for (const std::uint64_t num_bytes :
       {std::uint64_t{1} << 46, std::uint64_t{1} << 62, UINT64_MAX - kMiB, UINT64_MAX}) {
    const Result<std::unique_ptr<Arena>> arena = Arena::create(num_bytes);
    REQUIRE(!arena.is_ok());
    CHECK(arena.status().code() == StatusCode::kExhausted);
    CHECK(arena.status().message().find(std::to_string(num_bytes)) != std::string::npos);
  }
}

TEST_CASE("ranges outside the arena are refused") {
  const auto arena = make_arena(2 * kMiB);
  CHECK(arena->bytes(kMiB, kMiB).data() == arena->base() + kMiB);
  CHECK_THROWS_AS((void)arena->bytes(0, 2 * kMiB + 1), InternalError);
  CHECK_THROWS_AS((void)arena->bytes(2 * kMiB + 1, 0), InternalError);
  CHECK_THROWS_AS((void)arena->bytes(kMiB, UINT64_MAX), InternalError);
  CHECK_THROWS_AS(arena->release(kMiB, kMiB + 1), InternalError);
}

TEST_CASE("a forked child cannot see the arena and its destructor there unmaps nothing") {
  auto arena = make_arena(4 * kMiB);
  std::memset(arena->base(), 0x5a, 4 * kMiB);
  REQUIRE(is_readable(arena->base()));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (is_readable(arena->base()) || is_readable(arena->base() + 4 * kMiB - 1)) ::_exit(1);
    // Something else of the child comes to lie there, and must survive.
    std::byte* base = arena->base();
    if (::mmap(base, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) != base) {
      ::_exit(2);
    }
    arena.reset();
    ::_exit(is_readable(base) ? 0 : 3);
  }
  int wait_status = 0;
  REQUIRE(::waitpid(child, &wait_status, 0) == child);
  REQUIRE(WIFEXITED(wait_status));
  CHECK(WEXITSTATUS(wait_status) == 0);
  CHECK(arena->base()[0] == std::byte{0x5a});
}

TEST_CASE("a leaked arena outlives its object") {
  auto arena = make_arena(2 * kMiB);
  std::byte* base = arena->base();
  base[5] = std::byte{0x77};
  arena->leak();
  arena.reset();
  REQUIRE(is_readable(base));
  CHECK(base[5] == std::byte{0x77});
  ::munmap(base, 2 * kMiB);
}

}  // namespace
}  // namespace kvtier
