// Turns the core's statuses into the exceptions of kvtier.errors. All functions need the GIL.
#pragma once

#include <utility>

#include "base/status.h"

namespace kvtier::bindings {

/// What a wrong value is: a setting at start-up, or an argument of a call.
enum class CallKind { kSetUp, kUse };

/// Throws what becomes the Python exception; returns when `status` is ok.
void throw_if_error(const Status& status, CallKind kind = CallKind::kUse);
[[noreturn]] void throw_closed();

template <typename T>
T value_or_throw(Result<T> result, CallKind kind = CallKind::kUse) {
  throw_if_error(result.status(), kind);
  return std::move(result).value();
}

}  // namespace kvtier::bindings
