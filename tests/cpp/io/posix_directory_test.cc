// The real directory: the contract, modes, links, locks of dead processes, and places that cannot
// be.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "io/directory_conformance.h"
#include "testing/temporary_folder.h"

namespace kvtier::testing {
namespace {

std::unique_ptr<Directory> open_at(const std::string& path) {
  Result<std::unique_ptr<Directory>> opened = open_posix_directory(path);
  REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
  return std::move(opened).value();
}

unsigned mode_of(const std::string& path) {
  struct stat status{};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777u;
}

class UmaskScope {
 public:
  explicit UmaskScope(mode_t mask) : before_(::umask(mask)) {}
  ~UmaskScope() { ::umask(before_); }

 private:
  mode_t before_;
};

/// Forks with empty output buffers, which the child would else print a second time.
pid_t fork_quietly() {
  std::cout.flush();
  std::fflush(nullptr);
  return ::fork();
}

/// Runs `body` in a forked child, whose exit status is the answer.
int run_in_child(const std::function<int()>& body) {
  const pid_t child = fork_quietly();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("the real directory keeps the contract") {
  TemporaryFolder folder;
  check_directory_conformance([&folder] { return open_at(folder.path() + "/tier"); });
}

TEST_CASE("folders are 0700 and files 0600 whatever the umask") {
  for (const mode_t mask : {0000, 0022, 0377}) {
    CAPTURE(mask);
    TemporaryFolder folder;
    UmaskScope scope(mask);
    const std::string path = folder.path() + "/one/two";
    const std::unique_ptr<Directory> directory = open_at(path);
    static_cast<void>(directory->open_file("plain", {.is_created = true}));
    static_cast<void>(directory->open_file("direct", {.is_created = true, .is_direct = true}));
    REQUIRE(directory->lock("lock", "").is_ok());
    CHECK(mode_of(folder.path() + "/one") == 0700);
    CHECK(mode_of(path) == 0700);
    CHECK(mode_of(path + "/plain") == 0600);
    CHECK(mode_of(path + "/lock") == 0600);
    if (std::filesystem::exists(path + "/direct")) CHECK(mode_of(path + "/direct") == 0600);
  }
}

TEST_CASE("the mode of a folder that was there is left alone") {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/shared";
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  REQUIRE(::chmod(path.c_str(), 0755) == 0);
  const std::unique_ptr<Directory> directory = open_at(path);
  CHECK(mode_of(path) == 0755);
}

TEST_CASE("descriptors are closed in programs that are started") {
  TemporaryFolder folder;
  const std::unique_ptr<Directory> directory = open_at(folder.path());
  const int fd = open_or_fail(*directory, "a", {.is_created = true});
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("links and other things in the directory are refused and not listed") {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/tier";
  const std::unique_ptr<Directory> directory = open_at(path);
  std::ofstream(folder.path() + "/outside") << "precious";
  std::filesystem::create_symlink(folder.path() + "/outside", path + "/link");
  std::filesystem::create_directory(path + "/folder");
  REQUIRE(::mkfifo((path + "/pipe").c_str(), 0600) == 0);
  for (const char* name : {"link", "folder", "pipe"}) {
    CAPTURE(name);
    CHECK_FALSE(directory->open_file(name, {}).is_ok());
    CHECK_FALSE(directory->open_file(name, {.is_created = true}).is_ok());
    CHECK_FALSE(directory->stat_file(name).is_ok());
    CHECK_FALSE(directory->lock(name, "text").is_ok());
  }
  CHECK(sorted_names(*directory).empty());
  CHECK(std::filesystem::file_size(folder.path() + "/outside") == 8);
}

TEST_CASE("a path that cannot be a directory is a configuration error that names it") {
  TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  for (const std::string& path : {folder.path() + "/file", folder.path() + "/file/below"}) {
    const Status status = open_posix_directory(path).status();
    CHECK(status.code() == StatusCode::kConfig);
    CHECK(status.message().find(path) != std::string::npos);
  }
  CHECK(open_posix_directory("").status().code() == StatusCode::kConfig);
  CHECK(open_posix_directory(std::string("a\0b", 3)).status().code() == StatusCode::kConfig);
  CHECK(open_posix_directory("/proc/kvtier").status().code() == StatusCode::kConfig);
}

TEST_CASE("a folder that may not be written is a configuration error") {
  if (::geteuid() == 0) {
    MESSAGE("skipped: root may write everywhere");
    return;
  }
  TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0500) == 0);
  CHECK(open_posix_directory(folder.path()).status().code() == StatusCode::kConfig);
  CHECK(open_posix_directory(folder.path() + "/below").status().code() == StatusCode::kConfig);
  REQUIRE(::chmod(folder.path().c_str(), 0700) == 0);
}

TEST_CASE("a directory that was removed or replaced is no longer present") {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/tier";
  const std::unique_ptr<Directory> directory = open_at(path);
  CHECK(directory->is_present());
  std::filesystem::rename(path, folder.path() + "/moved");
  CHECK_FALSE(directory->is_present());
  std::filesystem::create_directory(path);
  CHECK_FALSE(directory->is_present());
  // Names are looked up in the directory that was opened, not in the one that took its place.
  REQUIRE(directory->open_file("a", {.is_created = true}).is_ok());
  CHECK(std::filesystem::exists(folder.path() + "/moved/a"));
  CHECK(std::filesystem::is_empty(path));
}

TEST_CASE("the lock of another process names it and ends when it is killed") {
  TemporaryFolder folder;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t holder = fork_quietly();
  REQUIRE(holder >= 0);
  if (holder == 0) {
    Result<std::unique_ptr<Directory>> opened = open_posix_directory(folder.path());
    const std::string text = "pid=" + std::to_string(::getpid());
    const bool is_locked = opened.is_ok() && opened.value()->lock("lock", text).is_ok();
    if (::write(ready[1], is_locked ? "y" : "n", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char answer = 0;
  REQUIRE(::read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  const std::unique_ptr<Directory> directory = open_at(folder.path());
  const Status busy = directory->lock("lock", "pid=me");
  CHECK(busy.code() == StatusCode::kBusy);
  CHECK(busy.message() == "pid=" + std::to_string(holder));
  REQUIRE(::kill(holder, SIGKILL) == 0);
  REQUIRE(::waitpid(holder, nullptr, 0) == holder);
  CHECK(directory->lock("lock", "pid=me").is_ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a forked child closes its descriptors and leaves the parent its lock") {
  TemporaryFolder folder;
  std::unique_ptr<Directory> directory = open_at(folder.path());
  const int fd = open_or_fail(*directory, "a", {.is_created = true});
  REQUIRE(directory->lock("lock", "parent").is_ok());
  const int answer = run_in_child([&] {
    directory->close_after_fork();
    const bool is_closed = ::fcntl(fd, F_GETFD) == -1;
    directory.reset();
    return is_closed ? 0 : 1;
  });
  CHECK(answer == 0);
  CHECK(run_in_child([&] {
          directory.reset();
          return 0;
        }) == 0);
  const std::unique_ptr<Directory> other = open_at(folder.path());
  CHECK(other->lock("lock", "other").code() == StatusCode::kBusy);
  CHECK(directory->stat_fd(fd).is_ok());
}

TEST_CASE("a write beyond the limit of the file's size fails and says how far it came") {
  TemporaryFolder folder;
  const std::unique_ptr<Directory> directory = open_at(folder.path());
  const int fd = open_or_fail(*directory, "a", {.is_created = true});
  const std::vector<std::byte> bytes = make_payload({1, 0}, 8192);
  const int answer = run_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {6000, 6000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const Status status = directory->write_at(fd, 0, bytes);
    if (status.os_errno() != EFBIG) return 2;
    return status.message().find("got_bytes=6000") == std::string::npos ? 3 : 0;
  });
  CHECK(answer == 0);
}

TEST_CASE("the alignment of direct I/O is asked for and holds") {
  TemporaryFolder folder;
  const std::unique_ptr<Directory> directory = open_at(folder.path());
  const DirectAlignment alignment = directory->direct_alignment();
  CHECK(sorted_names(*directory).empty());
  Result<int> opened = directory->open_file("a", {.is_created = true, .is_direct = true});
  if (!opened.is_ok()) {
    CHECK(opened.status().code() == StatusCode::kUnsupported);
    CHECK(sorted_names(*directory).empty());
    return;
  }
  AlignedBytes bytes(2 * std::max(alignment.offset_bytes, alignment.memory_bytes));
  const auto source = bytes.span().first(alignment.offset_bytes);
  CHECK(directory->write_at(opened.value(), alignment.offset_bytes, source).is_ok());
  CHECK(directory->read_at(opened.value(), alignment.offset_bytes, source).is_ok());
}

}  // namespace
}  // namespace kvtier::testing
