// Health of the disk tier: stalls and the circuit breaker. Guarded by the store's mutex.
#include <algorithm>
#include <cerrno>

#include "store/disk_tier.h"

namespace kvtier::store {
namespace {

// Failures without a second of success between them after which a direction is given up for a
// while.
constexpr std::uint32_t kWriteFailuresMax = 3;
constexpr std::uint32_t kReadFailuresMax = 8;
constexpr TimeNs kReprobeNs = 5 * kNsPerS;
constexpr TimeNs kForgetNs = kNsPerS;
// A sync or the making of a file waits for all that others have written too: on a slow disk that is
// no stall.
constexpr TimeNs kSlowStallNs = 10 * kNsPerS;

}  // namespace

TimeNs DiskTier::step(TimeNs now_ns) {
  for (auto segment = leaving_.begin(); segment != leaving_.end();) {
    segment = start_removal(*segment) ? leaving_.erase(segment) : segment + 1;
  }
  // Stalled is a device that ends nothing: a slow one with a long queue is not.
  const auto end_of_patience_ns = [this](TimeNs oldest_ns, TimeNs patience_ns) {
    return oldest_ns == kNeverNs ? kNeverNs
                                 : std::max(oldest_ns, engine_.last_result_ns()) + patience_ns;
  };
  const TimeNs stalled_at_ns =
      std::min(end_of_patience_ns(engine_.oldest_transfer_start_ns(), options_.stall_ns),
               end_of_patience_ns(engine_.oldest_other_start_ns(),
                                  std::max(options_.stall_ns, kSlowStallNs)));
  if (health_ == Health::kOff && read_retry_ns_ == 0) return kNeverNs;
  if (now_ns >= stalled_at_ns) {
    set_health(Health::kStalled, "nothing has ended for more than " +
                                     std::to_string(options_.stall_ns / kNsPerMs) + " ms");
    return kNeverNs;  // Its own end is the probe.
  }
  if (health_ == Health::kStalled) {
    set_health(is_read_only_ ? Health::kDegraded : Health::kOk, "");
  }
  if (health_ == Health::kOff && now_ns >= read_retry_ns_) {
    read_retry_ns_ = 0;
    num_read_failures_ = kReadFailuresMax - 1;  // One more failure turns it off again.
    set_health(is_read_only_ ? Health::kDegraded : Health::kOk, "");
  }
  TimeNs next_ns = stalled_at_ns;
  if (health_ == Health::kOff) next_ns = std::min(next_ns, read_retry_ns_);
  if (is_read_only_ && now_ns < write_retry_ns_) next_ns = std::min(next_ns, write_retry_ns_);
  return next_ns;
}

void DiskTier::note_write_result(const Status& status, TimeNs now_ns) {
  if (status.is_ok()) {
    // Writes that were under way with the failed one say nothing about the next.
    if (now_ns >= write_failure_ns_ + kForgetNs) num_write_failures_ = 0;
    // Before the time for a new try it is a write that was under way when the others failed.
    if (is_read_only_ && now_ns >= write_retry_ns_) {
      is_read_only_ = false;
      if (health_ == Health::kDegraded) set_health(Health::kOk, "");
    }
    return;
  }
  if (status.code() == StatusCode::kCancelled || status.code() == StatusCode::kClosed) return;
  write_failure_ns_ = now_ns;
  const bool is_hopeless = status.code() == StatusCode::kNoSpace || status.os_errno() == EROFS;
  if (++num_write_failures_ < kWriteFailuresMax && !is_hopeless) return;
  is_read_only_ = true;
  write_retry_ns_ = now_ns + kReprobeNs;
  if (health_ == Health::kOk || health_ == Health::kDegraded) {
    set_health(Health::kDegraded, "read-only, tried again every 5 s: " + status.message());
  }
}

void DiskTier::note_read_result(const Status& status, TimeNs now_ns) {
  if (status.is_ok()) {
    num_read_failures_ = 0;
    return;
  }
  // A file that ends early is that file's fault, not the device's.
  if (status.code() != StatusCode::kIoError || status.os_errno() == 0) return;
  if (++num_read_failures_ < kReadFailuresMax) return;
  read_retry_ns_ = now_ns + kReprobeNs;
  set_health(Health::kOff, "reads fail, tried again every 5 s: " + status.message());
}

bool DiskTier::is_writable(TimeNs now_ns) const {
  if (!is_readable()) return false;
  return !is_read_only_ || now_ns >= write_retry_ns_;
}

void DiskTier::turn_off(const std::string& reason) {
  read_retry_ns_ = 0;
  set_health(Health::kOff, reason);
}

void DiskTier::set_health(Health health, const std::string& reason) {
  if (health == health_ && reason == health_reason_) return;
  const bool is_news = health != health_;
  health_ = health;
  health_reason_ = reason;
  if (!is_news) return;
  if (health == Health::kOk) {
    log_("info", "disk tier works again");
  } else {
    const char* word = health == Health::kDegraded  ? "degraded"
                       : health == Health::kStalled ? "stalled"
                                                    : "off";
    log_("warning", std::string("disk tier is ") + word + ": " + reason);
  }
}

}  // namespace kvtier::store
