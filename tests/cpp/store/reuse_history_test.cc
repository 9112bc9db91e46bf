// What the history knows of keys, and what the model learns from it.
#include "store/reuse_history.h"

#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "base/random.h"

using namespace kvtier;
using namespace kvtier::store;

namespace {

std::vector<BlockUse> note(ReuseHistory& history, std::uint32_t first_tag, std::size_t num_blocks,
                           std::uint64_t request, std::size_t num_above = 0) {
  std::vector<ChainUse> chain;
  for (std::uint32_t i = 0; i < num_blocks; ++i) chain.push_back({first_tag + i, {}});
  history.note(chain, num_above, request);
  std::vector<BlockUse> uses;
  for (const ChainUse& use : chain) uses.push_back(use.use);
  return uses;
}

}  // namespace

TEST_CASE("equal request hashes are one use, whatever number of calls") {
  ReuseHistory history;
  for (int call = 0; call < 5; ++call) CHECK(note(history, 10, 3, 77)[0].num_uses == 1);
  CHECK(history.now() == 3);
  CHECK(note(history, 10, 3, 78)[0].num_uses == 2);
  CHECK(note(history, 10, 2, 78)[1].num_uses == 2);
}

TEST_CASE("without a request each call is a use of what it names, and of nothing above") {
  ReuseHistory history;
  note(history, 10, 2, 0);
  const auto uses = note(history, 10, 2, 0, 1);
  CHECK(uses[0].num_uses == 1);
  CHECK(uses[1].num_uses == 2);
}

TEST_CASE("what was used before is told from what is new, and the last block from the others") {
  ReuseHistory history;
  const auto first = note(history, 100, 10, 1);
  CHECK(first[0].use_class == use_class_of(1, {10, false}, false));
  CHECK(first[9].use_class == use_class_of(1, {10, false}, true));
  const auto second = note(history, 100, 12, 2);
  CHECK(second[0].use_class == use_class_of(2, {2, true}, false));
  CHECK(second[11].use_class == use_class_of(1, {2, true}, true));
  // The same request once more, with more blocks: those of its own call before are still new.
  const auto longer = note(history, 100, 20, 2);
  CHECK(longer[11].use_class == use_class_of(1, {10, true}, false));
}

TEST_CASE("a prompt that many share makes no conversation") {
  ReuseHistory history;
  for (std::uint64_t request = 1; request <= kSharedUses; ++request) note(history, 5, 2, request);
  const auto uses = note(history, 5, 4, 1000);
  CHECK(uses[3].use_class == use_class_of(1, {2, false}, true));
}

TEST_CASE("the history counts uses as a plain map does, and forgets what is too old") {
  Random random(7);
  ReuseHistory history(1u << 13);
  std::map<std::uint32_t, std::uint64_t> last_use;
  std::map<std::uint32_t, std::uint32_t> num_uses;
  for (std::uint64_t request = 1; request < 60'000; ++request) {
    const auto tag = static_cast<std::uint32_t>(random.below(random.below(2) == 0 ? 50 : 20'000));
    const std::uint64_t now = history.now();
    const BlockUse use = note(history, tag, 1, request)[0];
    const bool is_remembered = last_use.contains(tag) && now - last_use[tag] <= (1u << 13);
    num_uses[tag] = is_remembered ? std::min(num_uses[tag] + 1, 255u) : 1;
    REQUIRE(use.num_uses == num_uses[tag]);
    last_use[tag] = now;
  }
  CHECK(history.num_entries() == 1u << 13);
  CHECK(history.num_bytes() <= (1u << 13) * 16);
}

TEST_CASE("blocks of a class that comes back become worth more than those of one that does not") {
  ReuseHistory history;
  CHECK(history.model().return_share(use_class_of(1, {4, false}, false)) < 1.0f / 16);
  // Chains of 4 new blocks come back once; chains of 40 never do.
  std::uint64_t request = 0;
  for (std::uint32_t round = 0; round < 2000; ++round) {
    note(history, 1'000'000 + round * 100, 4, ++request);
    note(history, 2'000'000 + round * 100, 40, ++request);
    if (round >= 40) note(history, 1'000'000 + (round - 40) * 100, 4, ++request);
  }
  const ReuseModel& model = history.model();
  const std::uint8_t returning = use_class_of(1, {4, false}, false);
  const std::uint8_t passing = use_class_of(1, {40, false}, false);
  CHECK(model.return_share(returning) > 0.9f);
  CHECK(model.return_share(passing) < 1.0f / 16);
  CHECK(model.value(ReuseModel::cell_of(returning, 0)) >
        10 * model.value(ReuseModel::cell_of(passing, 0)));
  // Past the age at which they come back nothing is to be expected of them any more.
  CHECK(model.value(ReuseModel::cell_of(returning, 0)) >
        10 * model.value(ReuseModel::cell_of(returning, 30'000)));
}

TEST_CASE("steps of age cover every age once") {
  for (std::size_t step = 0; step < kNumAgeSteps; ++step) {
    CHECK(age_step_of(age_step_begin(step)) == step);
    if (step > 0) CHECK(age_step_of(age_step_begin(step) - 1) == step - 1);
  }
  CHECK(age_step_of(UINT32_MAX) == kNumAgeSteps - 1);
}

TEST_CASE("a history that was saved goes on as if there had been no restart") {
  for (const std::uint32_t num_requests : {3u, 700u, 3000u, 40000u}) {
    CAPTURE(num_requests);
    ReuseHistory before;
    Random random(num_requests);
    const auto use_some = [&random](std::uint64_t request) {
      const auto first = static_cast<std::uint32_t>(random.below(400) * 16);
      return std::tuple(first, 1 + random.below(12), random.below(3) == 0 ? 0 : request);
    };
    for (std::uint64_t request = 1; request <= num_requests; ++request) {
      const auto [first, num_blocks, hash] = use_some(request);
      note(before, first, num_blocks, hash);
    }
    format::UsesFile file;
    before.save(file);
    ReuseHistory after;
    REQUIRE(after.restore(file));
    // Values were learned, or not yet, as before.
    const bool has_learned = before.model().generation() > 1;
    CHECK((after.model().generation() > 1) == has_learned);
    for (std::uint64_t request = 1; request <= 3000; ++request) {
      const auto [first, num_blocks, hash] = use_some(1'000'000 + request);
      const auto one = note(before, first, num_blocks, hash);
      const auto other = note(after, first, num_blocks, hash);
      for (std::size_t i = 0; i < one.size(); ++i) {
        REQUIRE(one[i].num_uses == other[i].num_uses);
        REQUIRE(one[i].use_class == other[i].use_class);
        REQUIRE(before.now() - one[i].position == after.now() - other[i].position);
      }
    }
    CHECK(before.model().counts().size() == after.model().counts().size());
  }
}

TEST_CASE("a shorter part of a history still knows its last uses") {
  ReuseHistory before;
  for (std::uint64_t request = 1; request <= 5000; ++request) {
    note(before, static_cast<std::uint32_t>(request), 1, request);
  }
  format::UsesFile file;
  before.save(file);
  file.uses.erase(file.uses.begin(), file.uses.end() - 100);
  ReuseHistory after;
  REQUIRE(after.restore(file));
  CHECK(after.now() == 100);
  CHECK(note(after, 4901, 1, 1'000'000)[0].num_uses == 2);
  CHECK(note(after, 4900, 1, 1'000'001)[0].num_uses == 1);
}

TEST_CASE("what no history can have saved is refused, and changes nothing") {
  ReuseHistory history;
  note(history, 10, 3, 77);
  format::UsesFile file;
  history.save(file);
  const auto refused = [&history](format::UsesFile changed) {
    CHECK_FALSE(history.restore(changed));
    CHECK(history.now() == 3);
  };
  format::UsesFile changed = file;
  changed.uses[0].use_class = kNumUseClasses;
  refused(changed);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float count : {nan, infinity, -1.0f, 1e10f}) {
    changed = file;
    changed.counts = {{0, count, 0}};
    refused(changed);
    changed.counts = {{0, 0, count}};
    refused(changed);
  }
  changed.counts = {{ReuseModel::kNumCells, 1, 0}};
  refused(changed);
  changed = file;
  for (std::uint32_t i = 0; i < 65; ++i) changed.uses.push_back({i << 20, 1, 0, 1});
  refused(changed);  // All in one bucket.
  CHECK(history.restore(file));
}

TEST_CASE("forgotten keys are new, and a saved history does not name them") {
  ReuseHistory history;
  note(history, 10, 3, 77);
  history.forget(11);
  CHECK(note(history, 10, 1, 78)[0].num_uses == 2);
  CHECK(note(history, 11, 1, 79)[0].num_uses == 1);
  history.forget(11);
  history.forget(999);
  format::UsesFile file;
  history.save(file);
  for (const format::UseRecord& use : file.uses) CHECK(use.key_tag != 11);
  history.forget_keys();
  history.save(file);
  for (const format::UseRecord& use : file.uses) CHECK(use == format::UseRecord{});
  CHECK(note(history, 10, 1, 80)[0].num_uses == 1);
}
