// Compares and encodes in the task, outside of the store's mutex.
#include "store/live_publisher.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "disk/live_file_access.h"

namespace kvtier::store {
namespace {

std::string find_pid_namespace() {
  char name[64];
  const ssize_t num_bytes = ::readlink("/proc/self/ns/pid", name, sizeof name);
  return num_bytes > 0 ? std::string(name, static_cast<std::size_t>(num_bytes)) : std::string();
}

}  // namespace

void LivePublisher::note_line(const char* level, const std::string& text, TimeNs now_ns) {
  if (std::string_view(level) == "info") return;
  ++num_lines_;
  events_.push_back({now_ns, level, text});
  if (events_.size() > kEventsMax) events_.pop_front();
}

std::function<Status()> LivePublisher::begin(LiveState state) {
  is_writing_ = true;
  state.opened_ns = opened_ns_;
  state.events.assign(events_.begin(), events_.end());
  auto shared = std::make_shared<LiveState>(std::move(state));
  return [&directory = directory_, shared, num_lines = num_lines_, told = told_] {
    return tell(directory, *shared, num_lines, *told);
  };
}

Status LivePublisher::tell(Directory& directory, LiveState& state, std::uint64_t num_lines,
                           Told& told) {
  const bool is_news = !told.stats || state.is_closing || num_lines != told.num_lines ||
                       state.now_ns - told.time_ns >= kHeartbeatNs ||
                       differs(state.stats, *told.stats);
  if (!is_news) return Status::ok();
  state.pid = ::getpid();
  state.pid_namespace = find_pid_namespace();
  Status written = disk::write_live_file(directory, live_text_of(state));
  if (!written.is_ok()) return written;
  told.stats = std::move(state.stats);
  told.time_ns = state.now_ns;
  told.num_lines = num_lines;
  ++told.num_updates;
  return Status::ok();
}

bool LivePublisher::finish(const Status& status, TimeNs now_ns) {
  is_writing_ = false;
  num_updates_ = told_->num_updates;
  const bool is_failure = !status.is_ok() && status.code() != StatusCode::kCancelled;
  due_ns_ = now_ns + (is_failure ? std::max(interval_ns_, kRetryNs) : interval_ns_);
  return is_failure && num_failures_++ == 0;
}

}  // namespace kvtier::store
