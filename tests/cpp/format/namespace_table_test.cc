// Tests of namespace table text. Single-threaded.
#include "format/namespace_table.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "format/bit_flips.h"
#include "format/checksum_purpose.h"

namespace kvtier::format {
namespace {

NamespaceId make_id(unsigned salt) {
  NamespaceId id;
  for (std::size_t index = 0; index < 16; ++index) {
    id.bytes[index] = static_cast<std::uint8_t>(salt * 37 + index * 11);
  }
  return id;
}

NamespaceTable make_table() {
  NamespaceTable table;
  table.store_id = make_id(9);
  table.sequence = 12345;
  table.records = {{0, make_id(1), R"({"model": "Qwen/Qwen2.5-7B", "rank": 0})"},
                   {7, make_id(2), R"({"model": "größer"})"},
                   {4294967295u, make_id(3), ""}};
  return table;
}

StatusCode code_of(std::string_view text) { return decode_namespace_table(text).status().code(); }

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A table with any first line and records whose checksum fits.
std::string seal(const std::string& head, const std::string& rest) {
  const std::uint64_t seed =
      checksum_metadata(bytes_of(rest), seed_of(ChecksumPurpose::kNamespaceTable));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(checksum_metadata(bytes_of(head), seed)));
  return head + digits + "\n" + rest;
}

std::string head_with(const std::string& num_records) {
  return "kvtier-namespaces 1 " + make_id(9).to_hex() + " 5 " + num_records + " ";
}

TEST_CASE("a namespace table comes back as it was written") {
  const NamespaceTable table = make_table();
  const Result<NamespaceTable> decoded = decode_namespace_table(encode_namespace_table(table));
  REQUIRE(decoded.is_ok());
  CHECK(decoded.value().store_id == table.store_id);
  CHECK(decoded.value().sequence == table.sequence);
  REQUIRE(decoded.value().records.size() == 3);
  for (std::size_t index = 0; index < 3; ++index) {
    CHECK(decoded.value().records[index].namespace_index == table.records[index].namespace_index);
    CHECK(decoded.value().records[index].id == table.records[index].id);
    CHECK(decoded.value().records[index].description == table.records[index].description);
  }
}

TEST_CASE("an empty namespace table comes back too") {
  const Result<NamespaceTable> decoded = decode_namespace_table(encode_namespace_table({}));
  REQUIRE(decoded.is_ok());
  CHECK(decoded.value().records.empty());
}

TEST_CASE("a person can read a namespace table") {
  const std::string text = encode_namespace_table(make_table());
  CHECK(text.starts_with("kvtier-namespaces 1 " + make_id(9).to_hex() + " 12345 3 "));
  CHECK(text.find("\n0 " + make_id(1).to_hex() + R"( {"model": "Qwen/Qwen2.5-7B", "rank": 0})" +
                  "\n7 ") != std::string::npos);
}

TEST_CASE("any flipped bit of a namespace table is detected") {
  std::string text = encode_namespace_table(make_table());
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text.data(), text.size()));
  for_each_flipped_bit(bytes, [&](std::size_t bit) {
    CAPTURE(bit);
    REQUIRE(code_of(text) == StatusCode::kCorrupt);
  });
  CHECK(decode_namespace_table(text).is_ok());
}

TEST_CASE("a namespace table cut at any length or grown by a byte is corrupt") {
  const std::string text = encode_namespace_table(make_table());
  for_each_truncation(bytes_of(text), [](std::span<const std::byte> cut) {
    REQUIRE(code_of({reinterpret_cast<const char*>(cut.data()), cut.size()}) ==
            StatusCode::kCorrupt);
  });
  CHECK(code_of(text + "\n") == StatusCode::kCorrupt);
  CHECK(code_of(text + '\0') == StatusCode::kCorrupt);
}

TEST_CASE("a sound namespace table of another version is unsupported") {
  CHECK(code_of(seal("kvtier-namespaces 2 anything else ", "what a later\nversion likes")) ==
        StatusCode::kUnsupported);
  CHECK(code_of(seal("kvtier-namespaces 0 ", "")) == StatusCode::kUnsupported);
}

TEST_CASE("hostile namespace tables are corrupt although their checksum fits") {
  const std::string id = make_id(1).to_hex();
  const std::string other_id = make_id(2).to_hex();
  REQUIRE(code_of(seal(head_with("1"), "0 " + id + " {}\n")) == StatusCode::kOk);
  for (const std::string& rest :
       {std::string(), std::string("\n"), "0 " + id + " {}", "00 " + id + " {}\n",
        "+0 " + id + " {}\n", "-1 " + id + " {}\n", " " + id + " {}\n",
        "4294967296 " + id + " {}\n", "0  " + id + " {}\n", "0 " + id + "\n",
        "0 " + id.substr(1) + " {}\n", "0 " + id + "0 {}\n", "0 A" + id.substr(1) + " {}\n",
        "0 " + id + " a\rb\n", "0 " + id + " {}\n1 " + other_id + " {}\n"}) {
    CAPTURE(rest);
    CHECK(code_of(seal(head_with("1"), rest)) == StatusCode::kCorrupt);
  }
  CHECK(code_of(seal(head_with("2"), "0 " + id + " {}\n0 " + other_id + " {}\n")) ==
        StatusCode::kCorrupt);
  CHECK(code_of(seal(head_with("2"), "0 " + id + " {}\n1 " + id + " {}\n")) ==
        StatusCode::kCorrupt);
  const std::string rest = "0 " + id + " {}\n";
  for (const char* num_records :
       {"0", "2", "01", "", "-1", "18446744073709551615", "18446744073709551617", "1 1", "x"}) {
    CAPTURE(num_records);
    CHECK(code_of(seal(head_with(num_records), rest)) == StatusCode::kCorrupt);
  }
  for (const char* head :
       {"", " ", "kvtier-namespaces", "kvtier-namespaces ", "kvtier-namespaces 01 ",
        "kvtier-namespaces 99999999999 ", "kvtier-namespaces 1 ", "kvtier-namespace 1 00 0 0 "}) {
    CAPTURE(head);
    CHECK(code_of(seal(head, rest)) == StatusCode::kCorrupt);
  }
}

TEST_CASE("a namespace table beyond the size limit is corrupt, one at the limit is not") {
  NamespaceTable table = make_table();
  table.records[0].description.clear();
  const std::size_t room_bytes = kNamespaceTableBytesMax - encode_namespace_table(table).size();
  table.records[0].description = std::string(room_bytes, 'x');
  CHECK(code_of(encode_namespace_table(table)) == StatusCode::kOk);
  table.records[0].description += 'x';
  CHECK(code_of(encode_namespace_table(table)) == StatusCode::kCorrupt);
}

TEST_CASE("a namespace table that could not be read back is not written") {
  NamespaceTable broken_line = make_table();
  broken_line.records[1].description = "a\nb";
  CHECK_THROWS_AS((void)encode_namespace_table(broken_line), InternalError);
  NamespaceTable same_index = make_table();
  same_index.records[1].namespace_index = 0;
  CHECK_THROWS_AS((void)encode_namespace_table(same_index), InternalError);
  NamespaceTable same_id = make_table();
  same_id.records[1].id = same_id.records[0].id;
  CHECK_THROWS_AS((void)encode_namespace_table(same_id), InternalError);
}

}  // namespace
}  // namespace kvtier::format
