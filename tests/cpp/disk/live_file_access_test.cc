// The live file in a real folder: replaced, removed, spoilt, and never followed elsewhere.
#include "disk/live_file_access.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <thread>

#include "format/live_file.h"
#include "testing/temporary_folder.h"

using namespace kvtier;
using namespace kvtier::disk;
using namespace kvtier::testing;

namespace {

std::unique_ptr<Directory> open_directory(const TemporaryFolder& folder) {
  auto opened = open_posix_directory(folder.path());
  REQUIRE(opened.is_ok());
  return std::move(opened).value();
}

}  // namespace

TEST_CASE("a reader gets what was written last, and none before") {
  TemporaryFolder folder;
  CHECK(read_live_file(folder.path()).status().code() == StatusCode::kNotFound);
  CHECK(read_live_file(folder.path() + "/none").status().code() == StatusCode::kNotFound);
  const auto directory = open_directory(folder);
  REQUIRE(write_live_file(*directory, "hits=1000\n").is_ok());
  REQUIRE(write_live_file(*directory, "hits=2\n").is_ok());
  CHECK(read_live_file(folder.path()).value() == "hits=2\n");
  const std::string name = folder.path() + "/" + format::kLiveFileName;
  struct stat stat = {};
  REQUIRE(::stat(name.c_str(), &stat) == 0);
  CHECK((stat.st_mode & 0777) == 0600);
  REQUIRE(::unlink(name.c_str()) == 0);
  REQUIRE(write_live_file(*directory, "hits=3\n").is_ok());
  CHECK(read_live_file(folder.path()).value() == "hits=3\n");
  REQUIRE(::truncate(name.c_str(), 10) == 0);
  CHECK(read_live_file(folder.path()).status().code() == StatusCode::kCorrupt);
}

TEST_CASE("what somebody laid in its place is not followed") {
  TemporaryFolder folder;
  const std::string name = folder.path() + "/" + format::kLiveFileName;
  const std::string secret = folder.path() + "/secret";
  std::ofstream(secret) << "secret";
  SUBCASE("a symbolic link") { REQUIRE(::symlink(secret.c_str(), name.c_str()) == 0); }
  SUBCASE("a pipe") { REQUIRE(::mkfifo(name.c_str(), 0600) == 0); }
  SUBCASE("a folder") { REQUIRE(::mkdir(name.c_str(), 0700) == 0); }
  CHECK_FALSE(write_live_file(*open_directory(folder), "a=1\n").is_ok());
  CHECK_FALSE(read_live_file(folder.path()).is_ok());
  std::string content;
  std::ifstream(secret) >> content;
  CHECK(content == "secret");
}

TEST_CASE("readers beside a writer see whole texts only") {
  TemporaryFolder folder;
  const auto directory = open_directory(folder);
  const auto text_of = [](int i) {
    std::string text;
    for (int line = 0; line < 300 + i % 300; ++line) text += std::to_string(i) + "\n";
    return text;
  };
  REQUIRE(write_live_file(*directory, text_of(0)).is_ok());
  std::atomic<bool> is_over{false};  // Relaxed would do: nothing else is told by it.
  std::atomic<int> num_mixed{0};
  std::thread reader([&] {
    while (!is_over) {
      const auto read = read_live_file(folder.path());
      if (!read.is_ok()) continue;  // Met a replacement each time.
      const std::string first = read.value().substr(0, read.value().find('\n') + 1);
      for (std::size_t at = 0; at < read.value().size(); at += first.size()) {
        if (read.value().compare(at, first.size(), first) != 0) ++num_mixed;
      }
    }
  });
  for (int i = 0; i < 2000; ++i) CHECK(write_live_file(*directory, text_of(i)).is_ok());
  is_over = true;
  reader.join();
  CHECK(num_mixed == 0);
}
