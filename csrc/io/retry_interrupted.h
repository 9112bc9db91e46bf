// retry_interrupted: repeats a kernel call that a signal interrupted. Thread-safe: no state.
#pragma once

#include <cerrno>

namespace kvtier {

/// Calls `call` (returning negative and errno on failure) until it is not interrupted. Bounded,
/// because fallocate starts from the begin each time and a fast timer could starve it for ever;
/// then the caller sees EINTR.
template <typename Call>
auto retry_interrupted(Call call) {
  constexpr int kAttemptsMax = 100;
  auto answer = call();
  for (int attempt = 1; attempt < kAttemptsMax && answer < 0 && errno == EINTR; ++attempt) {
    answer = call();
  }
  return answer;
}

}  // namespace kvtier
