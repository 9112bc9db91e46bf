// PosixIoWorld: an IoEngineWorld of real files, for the engines that run on them. Not thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "io/io_engine_conformance.h"
#include "testing/temporary_folder.h"

namespace kvtier::testing {

inline constexpr auto kPatience = std::chrono::seconds(60);

class PosixIoWorld : public IoEngineWorld {
 public:
  using Make = std::function<std::unique_ptr<IoEngine>(Clock& clock)>;

  explicit PosixIoWorld(const Make& make) {
    Result<std::unique_ptr<Directory>> opened = open_posix_directory(folder_.path());
    REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
    directory_ = std::move(opened).value();
    engine_ = make(clock_);
    engine_->set_on_result([signal = signal_] {
      std::lock_guard<std::mutex> lock(signal->mutex);
      ++signal->num_calls;
      signal->changed.notify_all();
    });
  }

  ~PosixIoWorld() override { engine_.reset(); }

  Directory& directory() override { return *directory_; }
  IoEngine& engine() override { return *engine_; }
  TimeNs now_ns() override { return clock_.now_ns(); }
  bool is_alignment_checked() override { return folder_.is_on_disk(); }
  bool let_time_pass() override {
    std::unique_lock<std::mutex> lock(signal_->mutex);
    const bool is_called = signal_->changed.wait_for(
        lock, kPatience, [this] { return signal_->num_calls > num_seen_; });
    num_seen_ = signal_->num_calls;
    return is_called;
  }
  int num_calls() {
    std::lock_guard<std::mutex> lock(signal_->mutex);
    return signal_->num_calls;
  }
  void destroy_engine() { engine_.reset(); }

 private:
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    int num_calls = 0;
  };
  TemporaryFolder folder_;
  SystemClock clock_;
  std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  int num_seen_ = 0;
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<IoEngine> engine_;
};

}  // namespace kvtier::testing
