// How CoreStore calls its store: counted, without the GIL. Included by its own files.
#pragma once

#include "bindings/core_store.h"

namespace kvtier::bindings {

class CoreStore::CountedCall {
 public:
  explicit CountedCall(CoreStore& store) : store_(store) { store_.count_call(true); }
  ~CountedCall() { store_.count_call(false); }
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

 private:
  CoreStore& store_;
};

template <typename Call>
auto CoreStore::run(const Call& call) {
  std::shared_ptr<Store> store = use();
  const CountedCall counted(*this);
  auto result = [&] {
    const pybind11::gil_scoped_release release;
    return call(*store);
  }();
  deliver_log();
  release_buffers();
  return result;
}

}  // namespace kvtier::bindings
