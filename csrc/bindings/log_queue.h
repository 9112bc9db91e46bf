// LogQueue: lines of the core's threads, waiting for a Python thread to take them along.
// Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace kvtier::bindings {

/// No thread of the core ever takes the GIL: it leaves its line here.
class LogQueue {
 public:
  using Line = std::pair<std::string, std::string>;  // Level, text.

  /// Beyond kLinesMax lines are dropped and counted.
  void push(const char* level, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lines_.size() < kLinesMax) {
      lines_.emplace_back(level, text);
    } else {
      ++num_dropped_;
    }
  }

  std::vector<Line> take_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_dropped_ > 0) {
      lines_.emplace_back("warning", std::to_string(num_dropped_) + " lines of the log were lost");
    }
    num_dropped_ = 0;
    return std::exchange(lines_, {});
  }

 private:
  static constexpr std::size_t kLinesMax = 1000;
  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<Line> lines_;
  std::size_t num_dropped_ = 0;
};

}  // namespace kvtier::bindings
