// A detached thread that shares its state. Thread-safe.
#include "store/live_publisher.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/blocked_signals.h"
#include "disk/live_writer.h"
#include "store/live_text.h"

namespace kvtier {
namespace {

constexpr std::size_t kEventsMax = 16;
constexpr std::size_t kHoldersMax = 8;
// An idle store writes this often, so that a reader sees that somebody still does.
constexpr TimeNs kHeartbeatNs = 30 * kNsPerS;
// After which another directory at the path is the store's own, made anew: it found out before, and
// is off if the directory is somebody else's.
constexpr TimeNs kAdoptNs = 3 * kNsPerS;
constexpr std::chrono::milliseconds kStopTimeMax{200};

std::string find_pid_namespace() {
  char name[64];
  const ssize_t num_bytes = ::readlink("/proc/self/ns/pid", name, sizeof name);
  return num_bytes > 0 ? std::string(name, static_cast<std::size_t>(num_bytes)) : std::string();
}

}  // namespace

struct LivePublisher::State {
  State(std::string path, std::function<void(const char*, const std::string&)> receiver)
      : log(std::move(receiver)), writer(std::move(path)) {}

  // Constant once the thread runs.
  const std::function<void(const char*, const std::string&)> log;
  std::weak_ptr<Store> store;
  TimeNs interval_ns = 0;
  TimeNs opened_ns = 0;
  // The thread's.
  SystemClock clock;
  disk::LiveWriter writer;
  std::optional<StoreStats> told;
  std::uint64_t num_events_told = 0;
  TimeNs told_ns = 0;
  std::optional<TimeNs> lost_ns;  // Since when another directory stands there.
  // Guarded by mutex.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<LiveEvent> events;
  std::uint64_t num_events = 0;
  std::uint64_t num_published = 0;
  std::uint64_t num_failures = 0;
  bool is_running = false;
  bool is_stopping = false;
};

LivePublisher::LivePublisher(std::string path,
                             std::function<void(const char*, const std::string&)> log)
    : state_(std::make_shared<State>(std::move(path), std::move(log))) {}

LivePublisher::~LivePublisher() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->is_stopping = true;
  state_->changed.notify_all();
}

void LivePublisher::note_line(const char* level, const std::string& text) {
  if (std::string(level) == "info") return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  ++state_->num_events;
  state_->events.push_back({SystemClock().now_ns(), level, text});
  if (state_->events.size() > kEventsMax) state_->events.pop_front();
}

void LivePublisher::start(const std::shared_ptr<Store>& store, TimeNs interval_ns) {
  state_->store = store;
  state_->interval_ns = interval_ns;
  state_->opened_ns = state_->clock.now_ns();
  state_->is_running = true;
  const BlockedSignals blocked;
  std::thread([state = state_] { run(state); }).detach();
}

void LivePublisher::stop() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->is_stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kStopTimeMax, [this] { return !state_->is_running; });
}

std::uint64_t LivePublisher::num_published() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->num_published;
}

std::uint64_t LivePublisher::num_failures() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->num_failures;
}

void LivePublisher::run(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "kvtier-live");
  bool is_last = false;
  while (!is_last) {
    publish(*state, false);
    std::unique_lock<std::mutex> lock(state->mutex);
    state->changed.wait_for(lock, std::chrono::nanoseconds(state->interval_ns),
                            [&state] { return state->is_stopping; });
    is_last = state->is_stopping || state->store.expired();
  }
  publish(*state, true);
  const std::lock_guard<std::mutex> lock(state->mutex);
  state->is_running = false;
  state->changed.notify_all();
}

void LivePublisher::note_failure(State& state, const Status& status) {
  bool is_first = false;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    is_first = state.num_failures++ == 0;
  }
  if (!is_first) return;
  state.log("warning", "other processes cannot see the store's state: " + status.message() +
                           "; blocks are not concerned");
}

void LivePublisher::publish(State& state, bool is_last) {
  LiveState live;
  live.pid = ::getpid();
  live.pid_namespace = find_pid_namespace();
  live.opened_ns = state.opened_ns;
  live.is_closing = is_last;
  {
    const std::shared_ptr<Store> store = state.store.lock();
    if (!store) return;
    live.stats = store->stats();
    live.holders = store->holders(kHoldersMax);
  }
  live.now_ns = state.clock.now_ns();
  std::uint64_t num_events = 0;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    live.events.assign(state.events.begin(), state.events.end());
    num_events = state.num_events;
  }
  const bool is_news = !state.told || is_last || num_events != state.num_events_told ||
                       live.now_ns - state.told_ns >= kHeartbeatNs ||
                       differs(live.stats, *state.told);
  if (!is_news) return;
  const Status written = state.writer.write(live_text_of(live));
  if (written.code() == StatusCode::kNotFound) {
    if (!state.lost_ns) state.lost_ns = live.now_ns;
    const bool is_off = live.stats.disk.health == Health::kOff;
    if (!is_off && live.now_ns - *state.lost_ns >= kAdoptNs) state.writer.adopt_directory();
  } else {
    state.lost_ns.reset();
  }
  if (!written.is_ok()) return note_failure(state, written);
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.num_published;
  state.told = std::move(live.stats);
  state.told_ns = live.now_ns;
  state.num_events_told = num_events;
}

}  // namespace kvtier
