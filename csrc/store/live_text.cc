// Field by field. Stateless.
#include "store/live_text.h"

#include <charconv>
#include <concepts>
#include <cstddef>
#include <string_view>

#include "store/stats_fields.h"

namespace kvtier {
namespace {

void append_value(std::string& text, std::string_view value) {
  constexpr std::size_t kValueBytesMax = 512;
  constexpr char kDigits[] = "0123456789abcdef";
  text += '"';
  for (const char each : value.substr(0, kValueBytesMax)) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte >= 0x20 && byte < 0x7f && each != '"' && each != '\\') {
      text += each;
    } else {
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  text += '"';
}

void append_value(std::string& text, const std::string& value) {
  append_value(text, std::string_view(value));
}

void append_value(std::string& text, const char* value) {
  append_value(text, std::string_view(value));
}

void append_value(std::string& text, std::integral auto value) { text += std::to_string(value); }

void append_value(std::string& text, double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  text.append(digits, end);
}

template <typename Value>
void append_line(std::string& text, std::string_view prefix, std::string_view name,
                 const Value& value) {
  text.append(prefix).append(name) += '=';
  append_value(text, value);
  text += '\n';
}

template <typename Stats>
void append_fields(std::string& text, std::string_view prefix, const Stats& stats) {
  visit_fields(stats, [&text, prefix](const char* name, const auto& value) {
    append_line(text, prefix, name, value);
  });
}

void append_latency(std::string& text, const std::string& prefix, const LatencyStats& latency) {
  append_line(text, prefix, "calls", latency.calls);
  append_line(text, prefix, "total_ns", latency.total_ns);
  for (std::size_t i = 0; i < latency.buckets.size(); ++i) {
    if (latency.buckets[i] == 0) continue;
    append_line(text, prefix, "buckets." + std::to_string(i), latency.buckets[i]);
  }
}

void append_holder(std::string& text, const std::string& prefix, const Holder& holder) {
  append_line(text, prefix, "kind", holder.kind);
  append_line(text, prefix, "owner", holder.owner);
  append_line(text, prefix, "id", holder.id);
  append_line(text, prefix, "num_blocks", holder.num_blocks);
  append_line(text, prefix, "num_bytes", holder.num_bytes);
  append_line(text, prefix, "since_ns", holder.since_ns);
  append_line(text, prefix, "until_ns", holder.until_ns);
}

}  // namespace

std::string live_text_of(const LiveState& state) {
  std::string text;
  append_line(text, "", "pid", state.pid);
  append_line(text, "", "pid_namespace", state.pid_namespace);
  append_line(text, "", "state", state.is_closing ? "closing" : "open");
  append_line(text, "", "opened_ns", state.opened_ns);
  append_line(text, "", "now_ns", state.now_ns);
  append_fields(text, "stats.", state.stats);
  append_fields(text, "stats.jobs.", state.stats.jobs);
  if (state.stats.host.is_present) append_fields(text, "stats.host.", state.stats.host);
  if (state.stats.disk.is_present) append_fields(text, "stats.disk.", state.stats.disk);
  visit_latencies(state.stats, [&text](const char* kind, const LatencyStats& latency) {
    append_latency(text, std::string("stats.latency.") + kind + ".", latency);
  });
  for (std::size_t i = 0; i < state.holders.size(); ++i) {
    append_holder(text, "holders." + std::to_string(i) + ".", state.holders[i]);
  }
  // The newest first: the oldest go where the file ends.
  for (std::size_t i = 0; i < state.events.size(); ++i) {
    const LiveEvent& event = state.events[state.events.size() - 1 - i];
    const std::string prefix = "events." + std::to_string(i) + ".";
    append_line(text, prefix, "time_ns", event.time_ns);
    append_line(text, prefix, "level", event.level);
    append_line(text, prefix, "text", event.text);
  }
  return text;
}

bool differs(const StoreStats& stats, const StoreStats& before) {
  const auto text_of = [](StoreStats of) {
    of.live_updates = of.live_failures = 0;
    of.host.expected_read_bytes_per_s = of.disk.expected_read_bytes_per_s = 0;
    return live_text_of({0, {}, 0, 0, false, std::move(of), {}, {}});
  };
  return text_of(stats) != text_of(before);
}

}  // namespace kvtier
