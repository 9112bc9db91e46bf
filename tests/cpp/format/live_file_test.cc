// The live file: whole or nothing, whatever a reader meets.
#include "format/live_file.h"

#include <doctest/doctest.h>

using namespace kvtier;
using namespace kvtier::format;

namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

/// Without what fills it up.
std::vector<std::byte> short_file(const std::string& text) {
  auto bytes = encode_live_file(text);
  bytes.resize(kLiveHeaderBytes + text.size());
  return bytes;
}

}  // namespace

TEST_CASE("a live file is of one length, whatever it says") {
  CHECK(encode_live_file("").size() == kLiveFileBytesMax);
  CHECK(encode_live_file("hits=1\n").size() == kLiveFileBytesMax);
}

TEST_CASE("a live file gives back its text, also with an older one's end behind it") {
  for (const std::string text : {"", "a=1\n", "stats.hits=12\nname=\"x\"\n"}) {
    auto bytes = encode_live_file(text);
    CHECK(decode_live_file(bytes).value() == text);
    const auto older = bytes_of("what an earlier, longer text left\n");
    bytes.insert(bytes.end(), older.begin(), older.end());
    CHECK(decode_live_file(bytes).value() == text);
  }
}

TEST_CASE("a live file that is short, half new, or none at all is no text") {
  const auto bytes = short_file("hits=1\nmisses=2\n");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    const auto read = decode_live_file(std::span(bytes).first(length));
    CHECK(read.status().code() == StatusCode::kCorrupt);
  }
  auto mixed = short_file("hits=2\nmisses=3\n");
  std::copy(bytes.end() - 5, bytes.end(), mixed.end() - 5);
  CHECK(decode_live_file(mixed).status().code() == StatusCode::kCorrupt);
  CHECK(decode_live_file(bytes_of(std::string(64, 'x'))).status().code() == StatusCode::kCorrupt);
}

TEST_CASE("no flipped bit of a live file's text or header is taken for good") {
  const auto bytes = short_file("hits=1\nmisses=2\n");
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const auto read = decode_live_file(flipped);
    CAPTURE(bit);
    // Blanks that fill the header say nothing.
    if (read.is_ok()) CHECK(read.value() == "hits=1\nmisses=2\n");
  }
}

TEST_CASE("a live file of another version says so") {
  auto bytes = encode_live_file("hits=1\n");
  bytes[12] = std::byte{'7'};
  const auto read = decode_live_file(bytes);
  CHECK(read.status().code() == StatusCode::kUnsupported);
  CHECK(read.status().message().find("version=7") != std::string::npos);
}

TEST_CASE("a text that is too long loses whole lines at its end") {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "line=" + std::to_string(i) + "\n";
  const auto bytes = encode_live_file(text);
  CHECK(bytes.size() == kLiveFileBytesMax);
  const std::string read = decode_live_file(bytes).value();
  CHECK(read.size() > kLiveFileBytesMax - kLiveHeaderBytes - 16);
  CHECK(read.ends_with('\n'));
  CHECK(text.starts_with(read));
  CHECK(decode_live_file(encode_live_file(std::string(100'000, 'x'))).value().empty());
}
