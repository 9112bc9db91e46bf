// Tests of what superblock and segment header have in common. Single-threaded.
#include "format/header_page.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/check.h"
#include "format/little_endian.h"
#include "format/superblock.h"

namespace kvtier::format {
namespace {

constexpr HeaderKind kKind = {"test page", "KVTIERTS", ChecksumPurpose::kSuperblock};
constexpr std::size_t kBodyEndOffset = 20;

std::vector<std::byte> make_page() {
  std::vector<std::byte> page(kHeaderPageBytes);
  begin_header_page(kKind, page);
  store_little_endian(page.data() + kHeaderBodyOffset, std::uint64_t{0x1122334455667788});
  seal_header_page(kKind, page);
  return page;
}

TEST_CASE("a sealed header page verifies") {
  CHECK(verify_header_page(kKind, kBodyEndOffset, make_page()).is_ok());
}

TEST_CASE("a header page of another kind is called corrupt") {
  const HeaderKind other_magic = {"test page", "KVTIERXX", kKind.purpose};
  const HeaderKind other_purpose = {"test page", kKind.magic, ChecksumPurpose::kSegmentHeader};
  CHECK(verify_header_page(other_magic, kBodyEndOffset, make_page()).code() ==
        StatusCode::kCorrupt);
  CHECK(verify_header_page(other_purpose, kBodyEndOffset, make_page()).code() ==
        StatusCode::kCorrupt);
}

TEST_CASE("a sound header page of another version is unsupported, whatever its body") {
  for (const std::uint32_t version : {0u, kFormatVersion + 1, 0xffffffffu}) {
    std::vector<std::byte> page = make_page();
    store_little_endian(page.data() + kHeaderMagicBytes, version);
    page[2000] = std::byte{7};
    CHECK(verify_header_page(kKind, kBodyEndOffset, page).code() == StatusCode::kCorrupt);
    seal_header_page(kKind, page);
    const Status status = verify_header_page(kKind, kBodyEndOffset, page);
    CHECK(status.code() == StatusCode::kUnsupported);
    CHECK(status.message().find(std::to_string(version)) != std::string::npos);
  }
}

TEST_CASE("bytes set beyond the body are refused") {
  for (const std::size_t offset : {kBodyEndOffset, std::size_t{2048}, kHeaderChecksumOffset - 1}) {
    std::vector<std::byte> page = make_page();
    page[offset] = std::byte{1};
    seal_header_page(kKind, page);
    CHECK(verify_header_page(kKind, kBodyEndOffset, page).code() == StatusCode::kCorrupt);
  }
}

TEST_CASE("a header page of another size is refused when written and corrupt when read") {
  std::vector<std::byte> page(kHeaderPageBytes + 1);
  CHECK_THROWS_AS(begin_header_page(kKind, page), InternalError);
  CHECK(verify_header_page(kKind, kBodyEndOffset, page).code() == StatusCode::kCorrupt);
}

}  // namespace
}  // namespace kvtier::format
