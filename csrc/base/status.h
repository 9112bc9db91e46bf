// Status and Result: how operations that may fail report it. Values only, safe to copy between
// threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace kvtier {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  // The caller's values are wrong.
  kConfig,           // A setting cannot be honoured.
  kIoError,          // The operating system refused or failed; `os_errno` says how.
  kNoSpace,          // ENOSPC, EDQUOT or the tier's own cap.
  kCorrupt,          // Bytes were delivered but are not the ones that were stored.
  kNotFound,
  kExhausted,  // A bound of ours (slots, jobs, queue) is reached.
  kTimeout,
  kCancelled,
  kBusy,         // Somebody else holds it.
  kUnsupported,  // This kernel, file system or build cannot do it.
  kClosed,
  kInternal,
};

const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, int os_errno = 0)
      : code_(code), os_errno_(os_errno), message_(std::move(message)) {}

  static Status ok() { return Status(); }
  /// An operating-system failure: kNoSpace for ENOSPC/EDQUOT, kUnsupported for EOPNOTSUPP/ENOSYS,
  /// else kIoError. The text of `os_errno` is appended to `action`.
  static Status from_errno(int os_errno, const std::string& action);

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  int os_errno() const { return os_errno_; }
  const std::string& message() const { return message_; }
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  int os_errno_ = 0;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    KVTIER_CHECK(!status_.is_ok());
  }

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    KVTIER_CHECK(value_.has_value());
    return *value_;
  }
  const T& value() const& {
    KVTIER_CHECK(value_.has_value());
    return *value_;
  }
  T&& value() && {
    KVTIER_CHECK(value_.has_value());
    return std::move(*value_);
  }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace kvtier
