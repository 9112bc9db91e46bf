// Names and texts of statuses. Thread-safe.
#include "base/status.h"

#include <cerrno>
#include <system_error>

namespace kvtier {

const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kConfig:
      return "config";
    case StatusCode::kIoError:
      return "io_error";
    case StatusCode::kNoSpace:
      return "no_space";
    case StatusCode::kCorrupt:
      return "corrupt";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kExhausted:
      return "exhausted";
    case StatusCode::kTimeout:
      return "timeout";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kBusy:
      return "busy";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kClosed:
      return "closed";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Status Status::from_errno(int os_errno, const std::string& action) {
  StatusCode code = StatusCode::kIoError;
  if (os_errno == ENOSPC || os_errno == EDQUOT) code = StatusCode::kNoSpace;
  if (os_errno == EOPNOTSUPP || os_errno == ENOSYS) code = StatusCode::kUnsupported;
  // std::generic_category().message is the thread-safe strerror.
  std::string text = action + ": " + std::generic_category().message(os_errno) +
                     " (errno=" + std::to_string(os_errno) + ")";
  return Status(code, std::move(text), os_errno);
}

std::string Status::to_string() const {
  if (is_ok()) return "ok";
  return std::string(status_code_name(code_)) + ": " + message_;
}

}  // namespace kvtier
