// The devices on which tensors are attached to a store: opened at first use, closed after it.
#include <algorithm>
#include <string>

#include "bindings/core_store.h"

namespace kvtier::bindings {

namespace py = pybind11;

std::shared_ptr<paged::PagedDevice> CoreStore::open_device(Store& store,
                                                           const paged::PagedDeviceOptions& options,
                                                           Status& failure) {
  // One opens, which takes a while; who looks at the others meanwhile does not wait.
  const std::lock_guard<std::mutex> opening(opening_mutex_);
  {
    const std::lock_guard<std::mutex> lock(devices_mutex_);
    const auto found = devices_.find(options.cuda_ordinal);
    if (found != devices_.end()) return found->second;
  }
  auto memory = store.host_memory();
  failure = memory.status();
  if (!failure.is_ok()) return nullptr;
  auto opened = paged::PagedDevice::open(options);
  failure = opened.status();
  if (!failure.is_ok()) return nullptr;
  std::shared_ptr<paged::PagedDevice> device = std::move(opened).value();
  const std::string note = device->engine().note();
  if (!note.empty()) lines_->push("warning", "transfers are not at their best: " + note);
  const std::uint64_t host_bytes = store.stats().host.bytes_capacity;
  if (options.cuda_ordinal >= 0 && device->engine().device_info().is_integrated && host_bytes > 0) {
    lines_->push("warning", "the GPU and the host tier share one memory, and the tier takes " +
                                std::to_string(host_bytes) +
                                " bytes of it for what the GPU holds too: with a disk tier "
                                "unified=on leaves it out");
  }
  failure = store.place_near(device->engine().device_info().pci_address);
  if (!failure.is_ok()) return nullptr;
  const std::lock_guard<std::mutex> lock(devices_mutex_);
  if (are_devices_closed_) {
    failure = Status(StatusCode::kClosed, "the store was closed meanwhile");
    return nullptr;
  }
  device->add_memory(std::move(memory).value());
  devices_.emplace(options.cuda_ordinal, device);
  return device;
}

void CoreStore::close_devices(double timeout_s) {
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(devices_mutex_);
  are_devices_closed_ = true;
  if (devices_.empty()) return;
  // One deadline for all.
  const TimeNs deadline_ns = devices_.begin()->second->deadline_ns(ns_from_s(timeout_s));
  for (const auto& [ordinal, device] : devices_) {
    if (!device->close(deadline_ns)) {
      lines_->push("warning", "a device still holds transfers at close; their memory is kept");
    }
  }
}

void CoreStore::add_page_locks(py::dict host_fields) {
  std::string states;
  std::string refusals;
  std::uint64_t locked_bytes = 0;
  {
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(devices_mutex_);
    for (const auto& [ordinal, device] : devices_) {
      if (ordinal < 0) continue;
      const paged::PagedDevice::PageLock found = device->page_lock();
      const std::string name = "cuda:" + std::to_string(ordinal);
      states += (states.empty() ? "" : ", ") + name + " " + found.state;
      locked_bytes = std::max(locked_bytes, found.locked_bytes);
      if (!found.refusal.empty()) refusals += name + ": " + found.refusal + ". ";
    }
  }
  host_fields["page_locked_bytes"] = locked_bytes;
  if (!states.empty()) host_fields["mode_page_lock"] = states;
  if (!refusals.empty()) host_fields["mode_page_lock_note"] = refusals;
}

void CoreStore::warn_of_refusal(paged::PagedDevice& device) {
  const std::string refusal = device.take_refusal();
  if (refusal.empty()) return;
  lines_->push("warning", "host memory is not page-locked, transfers are slower: " + refusal);
  deliver_log();
}

}  // namespace kvtier::bindings
