// CudaContextScope: while it lives, CUDA calls of this thread go to one context. For one thread.
#pragma once

#include "device/cuda_driver.h"

namespace kvtier {

class CudaContextScope {
 public:
  CudaContextScope(const CudaDriver& driver, CudaContext context)
      : driver_(driver), result_(driver.context_push(context)) {
    // An engine may be capturing a graph in some other thread, which would forbid half the calls
    // here and be spoilt by them; none of them concerns its graph.
    int mode = kRelaxed;
    if (result_ == kCudaSuccess && driver_.capture_mode_exchange(&mode) == kCudaSuccess) {
      mode_before_ = mode;
    }
  }
  ~CudaContextScope() {
    if (result_ != kCudaSuccess) return;
    (void)driver_.capture_mode_exchange(&mode_before_);
    CudaContext popped = nullptr;
    (void)driver_.context_pop(&popped);
  }
  CudaContextScope(const CudaContextScope&) = delete;
  CudaContextScope& operator=(const CudaContextScope&) = delete;

  CudaResult result() const { return result_; }

 private:
  static constexpr int kGlobal = 0;  // What threads begin with.
  static constexpr int kRelaxed = 2;

  const CudaDriver& driver_;
  const CudaResult result_;
  int mode_before_ = kGlobal;
};

}  // namespace kvtier
