// KVTIER_CHECK: programmer errors. Thread-safe; throws InternalError, which the store turns into a
// failed store that answers MISS, or aborts when KVTIER_ABORT_ON_CHECK is defined (debug,
// sanitizers).
#pragma once

#include <stdexcept>
#include <string>

namespace kvtier {

/// The one exception of the core: an invariant does not hold. Caught by the store's public calls.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& values = {});

}  // namespace kvtier

#define KVTIER_CHECK(condition)                                               \
  do {                                                                        \
    if (!(condition)) ::kvtier::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
