// Tests of shared arenas: sealed memory that proves which arena it is. Some tests fork.
#include "memory/shared_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "memory/arena.h"

namespace kvtier {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

std::unique_ptr<Arena> make_shared_arena(std::uint64_t num_bytes) {
  auto arena = Arena::create(num_bytes, ArenaKind::kShared);
  REQUIRE_MESSAGE(arena.is_ok(), arena.status().to_string());
  return std::move(arena).value();
}

std::string refusal_of(int fd, const ArenaId& id, std::uint64_t num_bytes) {
  const auto opened = Arena::open_shared(fd, id, num_bytes);
  REQUIRE_FALSE(opened.is_ok());
  CHECK(opened.status().code() == StatusCode::kInvalidArgument);
  return opened.status().message();
}

TEST_CASE("what one mapping of a shared arena writes, the other reads") {
  for (const std::uint64_t num_bytes : {std::uint64_t{8192}, 5 * kMiB + 1}) {
    const auto arena = make_shared_arena(num_bytes);
    REQUIRE(arena->is_shared());
    auto opened = Arena::open_shared(arena->fd(), arena->id(), arena->num_bytes());
    REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
    const Arena& view = *opened.value();
    CHECK_FALSE(view.is_shared());
    CHECK(view.base() != arena->base());
    CHECK(view.num_bytes() == arena->num_bytes());
    std::memset(arena->base(), 0x5a, arena->num_bytes());
    view.base()[view.num_bytes() - 1] = std::byte{0x77};
    CHECK(view.base()[0] == std::byte{0x5a});
    CHECK(arena->base()[arena->num_bytes() - 1] == std::byte{0x77});
  }
}

TEST_CASE("a shared arena starts on a huge page, and says why it has none") {
  const auto arena = make_shared_arena(5 * kMiB);
  CHECK(arena->num_bytes() == 6 * kMiB);
  CHECK(reinterpret_cast<std::uintptr_t>(arena->base()) % (2 * kMiB) == 0);
  CHECK(arena->info().is_huge_page_advised == arena->info().note.empty());
  const bool is_refused = *shared_huge_pages_refused_because() != '\0';
  CHECK(arena->info().is_huge_page_advised != is_refused);
}

TEST_CASE("a shared arena cannot be cut, so no process makes another fault") {
  const auto arena = make_shared_arena(kMiB);
  CHECK(::ftruncate(arena->fd(), 4096) == -1);
  CHECK(errno == EPERM);
  CHECK(::ftruncate(arena->fd(), static_cast<off_t>(64 * kMiB)) == -1);
  CHECK(::fcntl(arena->fd(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
}

TEST_CASE("released pages of a shared arena read as zero in every process") {
  const auto arena = make_shared_arena(4 * kMiB);
  auto opened = Arena::open_shared(arena->fd(), arena->id(), arena->num_bytes());
  REQUIRE(opened.is_ok());
  std::memset(arena->base(), 0x5a, 4 * kMiB);
  arena->release(0, 2 * kMiB);
  CHECK(opened.value()->base()[0] == std::byte{0});
  CHECK(opened.value()->base()[2 * kMiB] == std::byte{0x5a});
}

TEST_CASE("a view outlives the arena that it was opened from") {
  auto arena = make_shared_arena(kMiB);
  auto opened = Arena::open_shared(arena->fd(), arena->id(), arena->num_bytes());
  REQUIRE(opened.is_ok());
  arena->base()[7] = std::byte{0x42};
  arena.reset();
  CHECK(opened.value()->base()[7] == std::byte{0x42});
}

TEST_CASE("another arena, another size, and what is no arena are refused by name") {
  const auto arena = make_shared_arena(kMiB);
  const auto other = make_shared_arena(kMiB);
  CHECK(arena->id() != other->id());
  CHECK(refusal_of(other->fd(), arena->id(), kMiB).find("another arena") != std::string::npos);
  CHECK(refusal_of(arena->fd(), arena->id(), 2 * kMiB).find("num_bytes=2097152") !=
        std::string::npos);
  CHECK(refusal_of(-1, arena->id(), kMiB).find("errno=9") != std::string::npos);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK(refusal_of(null, arena->id(), kMiB).find("not sealed memory") != std::string::npos);
  ::close(null);
  // Sealed, of the right length, and somebody else's.
  const int foreign = ::memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(foreign, static_cast<off_t>(kMiB + 4096)) == 0);
  CHECK(refusal_of(foreign, arena->id(), kMiB).find("not sealed memory") != std::string::npos);
  REQUIRE(::fcntl(foreign, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  CHECK(refusal_of(foreign, arena->id(), kMiB).find("not an arena of this version") !=
        std::string::npos);
  ::close(foreign);
}

TEST_CASE("a forked child sees nothing of a shared arena and gives its descriptor up") {
  auto arena = make_shared_arena(2 * kMiB);
  arena->base()[0] = std::byte{0x5a};
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    unsigned char page = 0;
    const bool is_mapped = ::mincore(arena->base(), 4096, &page) == 0;
    const int fd = arena->fd();
    arena->close_after_fork();
    const bool is_open = ::fcntl(fd, F_GETFD) >= 0;
    arena.reset();
    ::_exit(is_mapped ? 1 : is_open ? 2 : 0);
  }
  int wait_status = 0;
  REQUIRE(::waitpid(child, &wait_status, 0) == child);
  REQUIRE(WIFEXITED(wait_status));
  CHECK(WEXITSTATUS(wait_status) == 0);
  CHECK(arena->base()[0] == std::byte{0x5a});
}

TEST_CASE("a shared arena beyond the machine's memory is a clear error, one of 0 bytes is none") {
  CHECK(Arena::create(std::uint64_t{1} << 62, ArenaKind::kShared).status().code() ==
        StatusCode::kExhausted);
  const auto empty = make_shared_arena(0);
  CHECK_FALSE(empty->is_shared());
  CHECK(empty->base() == nullptr);
}

}  // namespace
}  // namespace kvtier
