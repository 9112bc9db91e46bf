// What every Directory must do, run on each implementation by its own test file. Not thread-safe.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/directory.h"
#include "testing/payload.h"

namespace kvtier::testing {

/// Gives handles on one directory, each as another process would have it.
using OpenDirectory = std::function<std::unique_ptr<Directory>()>;

inline int open_or_fail(Directory& directory, const std::string& name, const OpenFlags& flags) {
  Result<int> opened = directory.open_file(name, flags);
  REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
  return opened.value();
}

inline std::vector<std::string> sorted_names(Directory& directory) {
  Result<std::vector<std::string>> listed = directory.list_files();
  REQUIRE(listed.is_ok());
  std::sort(listed.value().begin(), listed.value().end());
  return listed.value();
}

inline void check_opening(Directory& directory) {
  const Status missing = directory.open_file("a", {}).status();
  CHECK(missing.code() == StatusCode::kNotFound);
  CHECK(missing.os_errno() == ENOENT);
  CHECK(missing.message().find("a") != std::string::npos);
  const int fd = open_or_fail(directory, "a", {.is_created = true, .is_new = true});
  CHECK(directory.open_file("a", {.is_created = true, .is_new = true}).status().os_errno() ==
        EEXIST);
  const int other_fd = open_or_fail(directory, "a", {.is_created = true});
  CHECK(fd != other_fd);
  CHECK(directory.open_file("b", {.is_new = true}).status().code() == StatusCode::kInvalidArgument);
  CHECK(sorted_names(directory) == std::vector<std::string>{"a"});
  directory.close_file(fd);
  CHECK_FALSE(directory.stat_fd(fd).is_ok());
  CHECK(directory.stat_fd(other_fd).is_ok());
  directory.close_file(other_fd);
  // A descriptor that is not ours is left alone.
  directory.close_file(other_fd);
  directory.close_file(-1);
}

inline void check_names(Directory& directory) {
  const OpenFlags created = {.is_created = true};
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"),
        std::string("/tmp/a"), std::string("a\0b", 3), std::string(256, 'x')}) {
    CAPTURE(name);
    CHECK(directory.open_file(name, created).status().code() == StatusCode::kInvalidArgument);
    CHECK(directory.remove_file(name).code() == StatusCode::kInvalidArgument);
    CHECK(directory.stat_file(name).status().code() == StatusCode::kInvalidArgument);
    CHECK(directory.rename_file(name, "z").code() == StatusCode::kInvalidArgument);
    CHECK(directory.rename_file("z", name).code() == StatusCode::kInvalidArgument);
    CHECK(directory.lock(name, "").code() == StatusCode::kInvalidArgument);
  }
  CHECK(sorted_names(directory).empty());
}

inline void check_transfers(Directory& directory) {
  const int fd = open_or_fail(directory, "data", {.is_created = true});
  const std::vector<std::byte> source = make_payload({1, 0}, 10'000);
  REQUIRE(directory.write_at(fd, 300, source).is_ok());
  CHECK(directory.stat_fd(fd).value().length_bytes == 10'300);
  std::vector<std::byte> target(source.size());
  REQUIRE(directory.read_at(fd, 300, target).is_ok());
  CHECK(are_equal(source, target));
  std::vector<std::byte> hole(300);
  REQUIRE(directory.read_at(fd, 0, hole).is_ok());
  CHECK(are_equal(hole, std::vector<std::byte>(300)));
  const Status ended = directory.read_at(fd, 10'000, target);
  CHECK(ended.code() == StatusCode::kIoError);
  CHECK(ended.os_errno() == 0);
  CHECK(ended.message().find("want_bytes=10000 got_bytes=300") != std::string::npos);
  CHECK(directory.sync_file(fd).is_ok());
  CHECK(directory.sync().is_ok());
  CHECK(directory.read_at(-1, 0, target).os_errno() == EBADF);
  CHECK(directory.write_at(-1, 0, target).os_errno() == EBADF);
  CHECK(directory.sync_file(-1).os_errno() == EBADF);
}

inline void check_space(Directory& directory) {
  const int fd = open_or_fail(directory, "space", {.is_created = true});
  REQUIRE(directory.free_bytes().is_ok());
  CHECK(directory.free_bytes().value() > 0);
  CHECK(directory.truncate(fd, 1 << 20).is_ok());
  CHECK(directory.stat_file("space").value().length_bytes == 1 << 20);
  CHECK(directory.stat_file("space").value().allocated_bytes == 0);
  const Status allocated = directory.allocate(fd, 0, 2 << 20);
  if (allocated.code() == StatusCode::kUnsupported) return;
  REQUIRE_MESSAGE(allocated.is_ok(), allocated.to_string());
  CHECK(directory.stat_file("space").value().length_bytes == 2 << 20);
  CHECK(directory.stat_file("space").value().allocated_bytes >= 2 << 20);
  CHECK(directory.truncate(fd, 4096).is_ok());
  CHECK(directory.stat_fd(fd).value().length_bytes == 4096);
  CHECK(directory.stat_fd(fd).value().allocated_bytes <= 16 * 1024);
  CHECK(directory.allocate(fd, 0, 0).os_errno() == EINVAL);
  CHECK(directory.allocate(-1, 0, 4096).os_errno() == EBADF);
  CHECK(directory.truncate(-1, 0).os_errno() == EBADF);
  // More than there is: refused, with the code that callers look for.
  const std::uint64_t too_many_bytes = 3ull << 30;
  if (directory.free_bytes().value() < too_many_bytes) {
    CHECK(directory.allocate(fd, 0, too_many_bytes).code() == StatusCode::kNoSpace);
  }
}

inline void check_renaming(Directory& directory) {
  const int fd = open_or_fail(directory, "new", {.is_created = true});
  const std::vector<std::byte> fresh = make_payload({2, 1}, 100);
  REQUIRE(directory.write_at(fd, 0, fresh).is_ok());
  const int old_fd = open_or_fail(directory, "old", {.is_created = true});
  const std::vector<std::byte> stale = make_payload({2, 0}, 100);
  REQUIRE(directory.write_at(old_fd, 0, stale).is_ok());
  CHECK(directory.rename_file("new", "old").is_ok());
  CHECK(sorted_names(directory) == std::vector<std::string>{"old"});
  std::vector<std::byte> bytes(100);
  const int renamed_fd = open_or_fail(directory, "old", {});
  REQUIRE(directory.read_at(renamed_fd, 0, bytes).is_ok());
  CHECK(are_equal(bytes, fresh));
  // Who had the replaced file open still has it.
  REQUIRE(directory.read_at(old_fd, 0, bytes).is_ok());
  CHECK(are_equal(bytes, stale));
  CHECK(directory.rename_file("new", "other").code() == StatusCode::kNotFound);
  CHECK(directory.remove_file("old").is_ok());
  CHECK(directory.remove_file("old").code() == StatusCode::kNotFound);
  CHECK(directory.stat_file("old").status().code() == StatusCode::kNotFound);
  CHECK(sorted_names(directory).empty());
  REQUIRE(directory.read_at(renamed_fd, 0, bytes).is_ok());
  CHECK(are_equal(bytes, fresh));
}

inline void check_locking(Directory& directory, const OpenDirectory& open) {
  const std::unique_ptr<Directory> other = open();
  REQUIRE(directory.lock("lock", "pid=17").is_ok());
  const Status busy = other->lock("lock", "pid=18");
  CHECK(busy.code() == StatusCode::kBusy);
  CHECK(busy.message() == "pid=17");
  directory.unlock();
  directory.unlock();
  CHECK(other->lock("lock", "18").is_ok());
  CHECK(directory.lock("lock", "pid=17").message() == "18");
  other->close_after_fork();
  CHECK_FALSE(other->list_files().is_ok());
  CHECK_FALSE(other->open_file("x", {.is_created = true}).is_ok());
}

inline void check_number_of_files(Directory& directory) {
  std::vector<int> fds;
  while (fds.size() < 1000) {
    Result<int> opened = directory.open_file("many", {.is_created = true});
    if (!opened.is_ok()) {
      CHECK(opened.status().code() == StatusCode::kExhausted);
      break;
    }
    fds.push_back(opened.value());
  }
  CHECK(fds.size() == 256);
  directory.close_file(fds.back());
  CHECK(directory.open_file("many", {}).is_ok());
}

inline void check_directory_conformance(const OpenDirectory& open) {
  const std::unique_ptr<Directory> directory = open();
  CHECK(directory->path().front() == '/');
  CHECK(directory->is_present());
  const std::uint32_t block_bytes = directory->file_system_block_bytes();
  CHECK(block_bytes >= 512);
  CHECK((block_bytes & (block_bytes - 1)) == 0);
  CHECK(directory->direct_alignment().memory_bytes > 0);
  CHECK(directory->direct_alignment().offset_bytes > 0);
  SUBCASE("files are created, found and refused as asked") { check_opening(*directory); }
  SUBCASE("names that are no plain file names are refused") { check_names(*directory); }
  SUBCASE("bytes come back and a file's end is an error") { check_transfers(*directory); }
  SUBCASE("space is reserved, counted and given back") { check_space(*directory); }
  SUBCASE("a rename replaces and an open file outlives its name") { check_renaming(*directory); }
  SUBCASE("one handle has the lock and the others learn whose it is") {
    check_locking(*directory, open);
  }
  SUBCASE("the number of open files is bounded") { check_number_of_files(*directory); }
}

}  // namespace kvtier::testing
