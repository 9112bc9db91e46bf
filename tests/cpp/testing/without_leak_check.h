// WithoutLeakCheck: for tests of a store that keeps what the kernel holds. One thread.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace kvtier::testing {

/// What is allocated meanwhile may stay: the store keeps what the kernel holds until the process
/// ends.
class WithoutLeakCheck {
 public:
#if defined(__SANITIZE_ADDRESS__)
  WithoutLeakCheck() { __lsan_disable(); }
  ~WithoutLeakCheck() { __lsan_enable(); }
#else
  WithoutLeakCheck() {}
  ~WithoutLeakCheck() {}
#endif
  WithoutLeakCheck(const WithoutLeakCheck&) = delete;
  WithoutLeakCheck& operator=(const WithoutLeakCheck&) = delete;
};

}  // namespace kvtier::testing
