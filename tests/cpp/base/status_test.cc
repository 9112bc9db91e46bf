// Statuses and results: codes from errno, texts, and values that are there or not.
#include "base/status.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace kvtier {
namespace {

TEST_CASE("an errno gives the code that callers act on and keeps its number") {
  CHECK(Status::from_errno(ENOSPC, "cannot x").code() == StatusCode::kNoSpace);
  CHECK(Status::from_errno(EDQUOT, "cannot x").code() == StatusCode::kNoSpace);
  CHECK(Status::from_errno(EOPNOTSUPP, "cannot x").code() == StatusCode::kUnsupported);
  CHECK(Status::from_errno(ENOSYS, "cannot x").code() == StatusCode::kUnsupported);
  const Status status = Status::from_errno(EIO, "cannot read file: fd=3");
  CHECK(status.code() == StatusCode::kIoError);
  CHECK(status.os_errno() == EIO);
  CHECK(status.message() == "cannot read file: fd=3: Input/output error (errno=5)");
  CHECK(status.to_string() == "io_error: " + status.message());
}

TEST_CASE("each code has a name of its own") {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    CHECK(names.insert(status_code_name(static_cast<StatusCode>(code))).second);
  }
  CHECK_FALSE(names.contains("unknown"));
  CHECK(std::string(status_code_name(static_cast<StatusCode>(200))) == "unknown");
  CHECK(Status::ok().to_string() == "ok");
}

TEST_CASE("a result has a value or a status") {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(7));
  CHECK(good.is_ok());
  CHECK(good.status().is_ok());
  CHECK(*std::move(good).value() == 7);
  Result<int> bad(Status(StatusCode::kBusy, "cannot x"));
  CHECK_FALSE(bad.is_ok());
  CHECK(bad.status().code() == StatusCode::kBusy);
#ifndef KVTIER_ABORT_ON_CHECK
  CHECK_THROWS_AS(bad.value(), InternalError);
  CHECK_THROWS_AS(Result<int>(Status::ok()), InternalError);
#endif
}

}  // namespace
}  // namespace kvtier
