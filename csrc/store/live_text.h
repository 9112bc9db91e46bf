// Live text: the state of a running store in lines "name=value", for other processes. Pure
// functions.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "store/holder.h"
#include "store/store_stats.h"

namespace kvtier {

/// A line of the log that is worth a look.
struct LiveEvent {
  TimeNs time_ns = 0;
  std::string level;
  std::string text;
};

struct LiveState {
  pid_t pid = 0;
  std::string pid_namespace;  // In which the pid means something; empty: unknown.
  TimeNs opened_ns = 0;
  TimeNs now_ns = 0;
  bool is_closing = false;  // The last state before close() ends.
  StoreStats stats;
  std::vector<Holder> holders;
  std::vector<LiveEvent> events;  // Oldest first.
};

/// One value a line: integers and decimals bare, text in double quotes with what is no printable
/// ASCII, a quote or a backslash as \xHH. Counters come first, what is less missed comes last.
std::string live_text_of(const LiveState& state);

/// Whether `stats` says something new; rates that fade while nothing happens do not count.
bool differs(const StoreStats& stats, const StoreStats& before);

}  // namespace kvtier
