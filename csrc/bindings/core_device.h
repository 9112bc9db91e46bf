// CoreDevice: what Python holds of a device, for measurements. Its members are constant; the calls
// release the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/wait_piece.h"
#include "bindings/errors_binding.h"
#include "bindings/paged_arguments.h"
#include "device/device.h"

namespace kvtier::bindings {

class CoreDevice {
 public:
  CoreDevice() : owner_pid_(::getpid()) {}
  ~CoreDevice() {
    // In the child of a fork the driver is of no use, and its end could wait for ever.
    if (is_forked()) static_cast<void>(device_.release());
  }
  CoreDevice(const CoreDevice&) = delete;
  CoreDevice& operator=(const CoreDevice&) = delete;

  static std::shared_ptr<CoreDevice> open_host();
  static std::shared_ptr<CoreDevice> open_cuda(int ordinal);

  /// Throws ClosedError in the child of a fork.
  Device& use() const {
    if (is_forked()) throw_closed();
    return *device_;
  }
  bool is_forked() const { return ::getpid() != owner_pid_; }
  Clock& clock() { return clock_; }
  TimeNs deadline_ns(double timeout_s) {
    return deadline_after(clock_.now_ns(), ns_from_s(timeout_s));
  }

 private:
  const pid_t owner_pid_;
  SystemClock clock_;
  std::unique_ptr<Device> device_;
};

/// As throw_if_error; memory that ran out is the machine's error, not one of the program.
inline void throw_if_device_error(const Status& status) {
  if (status.code() == StatusCode::kExhausted) {
    throw_if_error(Status::from_errno(ENOMEM, status.message()));
  }
  throw_if_error(status);
}

/// Calls without the GIL; the answer is a Result or a Status.
template <typename Call>
auto run_on_device(const Call& call) {
  auto answer = [&] {
    const pybind11::gil_scoped_release release;
    return call();
  }();
  if constexpr (std::is_same_v<decltype(answer), Status>) {
    throw_if_device_error(answer);
  } else {
    throw_if_device_error(answer.status());
    return std::move(answer).value();
  }
}

}  // namespace kvtier::bindings
