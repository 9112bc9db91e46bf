// The one place where statuses and the core's exception become Python exceptions. Needs the GIL.
#include "bindings/errors_binding.h"

#include <pybind11/pybind11.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "bindings/bindings.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

const char* error_class_name(StatusCode code, CallKind kind) {
  switch (code) {
    case StatusCode::kConfig:
      return "ConfigError";
    case StatusCode::kInvalidArgument:
      return kind == CallKind::kSetUp ? "ConfigError" : "UsageError";
    case StatusCode::kIoError:
    case StatusCode::kNoSpace:
    case StatusCode::kCorrupt:
    case StatusCode::kNotFound:
      return "TierIOError";
    case StatusCode::kTimeout:
      return "TimeoutError";
    case StatusCode::kBusy:
      return "StoreBusyError";
    case StatusCode::kClosed:
    case StatusCode::kCancelled:
      return "ClosedError";
    case StatusCode::kUnsupported:
      return "UnsupportedError";
    default:
      return "InternalError";
  }
}

// An OSError without errno would be useless to whoever switches on it.
int errno_of(const Status& status) {
  if (status.os_errno() != 0) return status.os_errno();
  if (status.code() == StatusCode::kNoSpace) return ENOSPC;
  return status.code() == StatusCode::kNotFound ? ENOENT : EIO;
}

// File names are bytes: what is no UTF-8 in them must not hide the error itself.
py::object text_of(const std::string& message) {
  const auto length = static_cast<Py_ssize_t>(message.size());
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message.data(), length, "backslashreplace"));
}

[[noreturn]] void raise(const char* class_name, const py::tuple& arguments) {
  const py::object error_class = py::module_::import("kvtier.errors").attr(class_name);
  const py::object error = error_class(*arguments);
  PyErr_SetObject(error_class.ptr(), error.ptr());
  throw py::error_already_set();
}

void translate_internal_error(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const InternalError& error) {
    const py::object error_class = py::module_::import("kvtier.errors").attr("InternalError");
    PyErr_SetString(error_class.ptr(), error.what());
  }
}

}  // namespace

void throw_if_error(const Status& status, CallKind kind) {
  if (status.is_ok()) return;
  const char* class_name = error_class_name(status.code(), kind);
  const std::string message =
      status.message().empty() ? status_code_name(status.code()) : status.message();
  if (std::string_view(class_name) == "TierIOError") {
    raise(class_name, py::make_tuple(errno_of(status), text_of(message)));
  }
  raise(class_name, py::make_tuple(text_of(message)));
}

void throw_closed() {
  throw_if_error(Status(StatusCode::kClosed, "the store is closed, or was opened before a fork"));
  throw InternalError("a closed status is an error");
}

void bind_errors(py::module_&) {
  py::register_local_exception_translator(translate_internal_error);
}

}  // namespace kvtier::bindings
