// Live text: every field a line, nothing in it that could end one early.
#include "store/live_text.h"

#include <doctest/doctest.h>

using namespace kvtier;

namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

LiveState some_state() {
  LiveState state;
  state.pid = 42;
  state.now_ns = 9;
  state.stats.hit_blocks = 7;
  state.stats.host.is_present = true;
  state.stats.host.health = Health::kOk;
  state.stats.host.read_bytes_per_s = 1.5e9;
  return state;
}

}  // namespace

TEST_CASE("counters, tiers and latencies stand under their names") {
  LiveState state = some_state();
  state.stats.get_latency.add(3'000);
  const std::string text = live_text_of(state);
  CHECK(has_line(text, "pid=42"));
  CHECK(has_line(text, "state=\"open\""));
  CHECK(has_line(text, "now_ns=9"));
  CHECK(has_line(text, "stats.hit_blocks=7"));
  CHECK(has_line(text, "stats.is_recovered_clean=1"));
  CHECK(has_line(text, "stats.jobs.ended=0"));
  CHECK(has_line(text, "stats.host.health=\"ok\""));
  CHECK(has_line(text, "stats.host.read_bytes_per_s=1.5e+09"));
  CHECK(has_line(text, "stats.latency.get.calls=1"));
  CHECK(has_line(text, "stats.latency.get.buckets.2=1"));
  CHECK(text.find("stats.disk.") == std::string::npos);
  state.is_closing = true;
  CHECK(has_line(live_text_of(state), "state=\"closing\""));
}

TEST_CASE("what callers wrote cannot end a line or a text") {
  LiveState state = some_state();
  state.holders.push_back({"lease", "a\"b\\c\nd\xff", 1, 2, 3, 4, 5});
  state.events.push_back({1, "warning", "old"});
  state.events.push_back({2, "warning", std::string(10'000, 'y')});
  const std::string text = live_text_of(state);
  CHECK(has_line(text, "holders.0.owner=\"a\\x22b\\x5cc\\x0ad\\xff\""));
  CHECK(has_line(text, "holders.0.until_ns=5"));
  CHECK(has_line(text, "events.0.text=\"" + std::string(512, 'y') + "\""));
  CHECK(has_line(text, "events.1.text=\"old\""));
}

TEST_CASE("rates that fade are no news, counters are") {
  const StoreStats before = some_state().stats;
  StoreStats stats = before;
  stats.host.expected_read_bytes_per_s = 5;
  CHECK_FALSE(differs(stats, before));
  ++stats.host.hits;
  CHECK(differs(stats, before));
}
