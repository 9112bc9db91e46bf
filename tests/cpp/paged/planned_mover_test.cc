// Saves and loads that other ranks carry out: blocks are there when every rank has answered, and
// slots are given back no sooner. Simulated store; ranks are doubles.
#include "paged/planned_mover.h"

#include "paged/planned_world.h"

using namespace kvtier;
using namespace kvtier::paged;
using namespace kvtier::testing;

TEST_CASE("what two ranks save, each its part, both load again, from host and from disk") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    PlannedWorld world(seed);
    const PlannedJob save = world.save(0, 20);
    const MovePlan plan = world.take_one(save);
    CHECK(world.take(save).empty());
    CHECK(world.finish(world.ranks[0].carry_out(plan)));
    CHECK(world.lookup(world.space, 0, 20) == 0);  // The other half is missing.
    CHECK(world.finish(world.ranks[1].carry_out(plan)));
    world.end(save);
    CHECK(count_done(save.job->outcomes()) == 20);
    CHECK(count_done(world.get(world.space, 0, 20, kBytes)) == 20);

    world.carry_out(world.load(0, 20));
    world.check_loaded(0, 20);
    world.reopen();
    const PlannedJob cold = world.load(0, 25);
    world.carry_out(cold);
    CHECK(count_done(cold.job->outcomes()) == 20);
    CHECK(cold.job->undefined_indices().empty());
    world.check_loaded(0, 20);
    CHECK(world.store->stats().disk.hits == 20);
  }
}

TEST_CASE("blocks that get no host slot come through shared staging buffers") {
  PlannedWorld world(3, 64 << 10);
  for (std::uint64_t first = 0; first < 40; first += 8) {
    REQUIRE(count_done(world.put(world.space, first, 8, kBytes)) == 8);
    world.flush();
  }
  REQUIRE(world.store->clear(true, false).is_ok());
  const PlannedJob busy = world.save(1000, 16);  // Has every host slot.
  for (std::uint64_t first = 0; first < 40; first += 8) {
    const PlannedJob load = world.load(first, 8);
    world.carry_out(load);
    CHECK(count_done(load.job->outcomes()) == 8);
    world.check_loaded(first, 8);
  }
  CHECK(world.num_staged_blocks == 40);
  CHECK(world.store->cancel_job(*busy.job).is_ok());
  world.end(busy);
}

TEST_CASE("one rank's failure fails the save, and names every row of the load") {
  PlannedWorld world;
  const PlannedJob save = world.save(0, 4);
  const MovePlan plan = world.take_one(save);
  CHECK(world.finish(world.ranks[0].fail(plan)));
  CHECK_FALSE(save.job->is_ended());  // Rank 1 may still be writing.
  CHECK(world.finish(world.ranks[1].carry_out(plan)));
  world.end(save);
  CHECK(save.job->outcomes()[0] == Outcome::kFailed);
  CHECK(world.lookup(world.space, 0, 4) == 0);

  world.carry_out(world.save(0, 4));
  const PlannedJob load = world.load(0, 4);
  const MovePlan loaded = world.take_one(load);
  CHECK(world.finish(world.ranks[1].carry_out(loaded)));
  CHECK(world.finish(world.ranks[0].fail(loaded)));
  world.end(load);
  CHECK(load.job->outcomes()[0] == Outcome::kFailed);
  CHECK(load.job->undefined_indices() == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(world.lookup(world.space, 0, 4) == 4);
}

TEST_CASE("a part that arrives wrong on one rank is named, the others stay") {
  PlannedWorld world;
  world.carry_out(world.save(0, 4));
  const PlannedJob load = world.load(0, 4);
  const MovePlan plan = world.take_one(load);
  CHECK(world.finish(world.ranks[0].carry_out(plan)));
  RankResult wrong = world.ranks[1].carry_out(plan);
  wrong.status = Status(StatusCode::kCorrupt, "not what was saved");
  wrong.undefined_indices = {2};
  CHECK(world.finish(wrong));
  world.end(load);
  CHECK(load.job->undefined_indices() == std::vector<std::size_t>{2, 3});
  CHECK(count_done(load.job->outcomes()) == 2);
  CHECK(load.job->outcomes()[2] == Outcome::kFailed);  // Host memory has it right.
  CHECK(world.lookup(world.space, 0, 4) == 4);
}

TEST_CASE("a rank that finds something wrong and does not say what makes all of it undefined") {
  PlannedWorld world;
  world.carry_out(world.save(0, 4));
  const PlannedJob load = world.load(0, 4);
  const MovePlan plan = world.take_one(load);
  CHECK(world.finish(world.ranks[0].carry_out(plan)));
  RankResult wrong = world.ranks[1].carry_out(plan);
  wrong.status = Status(StatusCode::kCorrupt, "not what was saved");
  wrong.undefined_indices.clear();
  CHECK(world.finish(wrong));
  world.end(load);
  CHECK(load.job->undefined_indices() == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(count_done(load.job->outcomes()) == 0);
}

TEST_CASE("an abandoned rank ends its moves, but not before the others have answered") {
  PlannedWorld world;
  const PlannedJob save = world.save(0, 4);
  const MovePlan plan = world.take_one(save);
  CHECK(world.plans->abandon_rank(1) == 1);
  CHECK(world.plans->generation() == 1);
  CHECK(world.store->wait_job(*save.job, 60 * kNsPerS).code() == StatusCode::kTimeout);
  CHECK(world.finish(world.ranks[0].carry_out(plan)));
  world.end(save);
  CHECK(save.job->outcomes()[0] == Outcome::kFailed);
  // What the dead one says after all, and anybody's second word, changes nothing.
  CHECK_FALSE(world.finish(world.ranks[1].carry_out(plan)));
  CHECK_FALSE(world.finish(world.ranks[0].carry_out(plan)));
  // The next request is for whoever is there now.
  const PlannedJob next = world.save(0, 4);
  const MovePlan fresh = world.take_one(next);
  CHECK(fresh.generation == 1);
  CHECK(fresh.plan_id != plan.plan_id);
  for (RankDouble& rank : world.ranks) CHECK(world.finish(rank.carry_out(fresh)));
  world.end(next);
  CHECK(count_done(world.get(world.space, 0, 4, kBytes)) == 4);
}

TEST_CASE("plans that nobody took end with the rank, and touched no row") {
  PlannedWorld world;
  world.carry_out(world.save(0, 4));
  const PlannedJob load = world.load(0, 4);
  CHECK(world.plans->abandon_rank(0) == 1);
  world.end(load);
  CHECK(load.job->outcomes()[0] == Outcome::kFailed);
  CHECK(load.job->undefined_indices().empty());
  CHECK(world.take(load).empty());
  CHECK(world.plans->abandon_rank(5) == 0);
}

TEST_CASE("a cancelled or late move ends at once when nobody took it, else with its answers") {
  for (const bool is_cancelled : {false, true}) {
    for (const bool is_taken : {false, true}) {
      CAPTURE(is_cancelled);
      CAPTURE(is_taken);
      PlannedWorld world;
      const PlannedJob save = world.save(0, 4, kNsPerS);
      MovePlan plan;
      if (is_taken) plan = world.take_one(save);
      if (is_cancelled) CHECK(world.store->cancel_job(*save.job).is_ok());
      if (is_taken) {
        CHECK(world.store->wait_job(*save.job, 60 * kNsPerS).code() == StatusCode::kTimeout);
        for (RankDouble& rank : world.ranks) CHECK(world.finish(rank.carry_out(plan)));
      }
      world.end(save);
      // What was moved all the same is there.
      const Outcome early = is_cancelled ? Outcome::kCancelled : Outcome::kTimeout;
      CHECK(save.job->outcomes()[0] == (is_taken ? Outcome::kDone : early));
      CHECK(world.lookup(world.space, 0, 4) == (is_taken ? 4 : 0));
      CHECK(world.plans->num_plans() == 0);
    }
  }
}

TEST_CASE("plans that were put back are taken anew, by whoever asks next") {
  PlannedWorld world;
  const PlannedJob save = world.save(0, 4);
  const MovePlan lost = world.take_one(save);
  const PlanId plan_ids[] = {lost.plan_id, lost.plan_id, 12345};
  CHECK(save.mover->is_exhausted());
  save.mover->put_back_plans(plan_ids);
  CHECK_FALSE(save.mover->is_exhausted());
  // Nobody has it, so nobody can answer it.
  CHECK_FALSE(world.finish(world.ranks[0].carry_out(lost)));
  const MovePlan plan = world.take_one(save);
  CHECK(plan.plan_id == lost.plan_id);
  for (RankDouble& rank : world.ranks) CHECK(world.finish(rank.carry_out(plan)));
  world.end(save);
  CHECK(count_done(world.get(world.space, 0, 4, kBytes)) == 4);
  save.mover->put_back_plans(plan_ids);  // It has ended.
  CHECK(world.plans->num_plans() == 0);
}

TEST_CASE("a move that was to end while its plan was being handed out ends when it is put back") {
  for (const bool is_abandoned : {false, true}) {
    CAPTURE(is_abandoned);
    PlannedWorld world;
    world.carry_out(world.save(0, 4));
    const PlannedJob load = world.load(0, 4);
    const PlanId plan_ids[] = {world.take_one(load).plan_id};
    if (is_abandoned) {
      CHECK(world.plans->abandon_rank(1) == 1);
    } else {
      CHECK(world.store->cancel_job(*load.job).is_ok());
    }
    CHECK(world.store->wait_job(*load.job, 60 * kNsPerS).code() == StatusCode::kTimeout);
    load.mover->put_back_plans(plan_ids);
    world.end(load);
    CHECK(count_done(load.job->outcomes()) == 0);
    CHECK(load.job->undefined_indices().empty());  // No rank began.
    CHECK(world.plans->num_plans() == 0);
    CHECK(world.lookup(world.space, 0, 4) == 4);
  }
}

TEST_CASE("a store closes while ranks still work, and their answers come too late") {
  PlannedWorld world;
  world.carry_out(world.save(0, 4));
  const PlannedJob late = world.save(4, 4, kNsPerS);
  const MovePlan late_plan = world.take_one(late);
  CHECK(world.store->wait_job(*late.job, 10 * kNsPerS).code() == StatusCode::kTimeout);
  const PlannedJob load = world.load(0, 4);
  const MovePlan plan = world.take_one(load);
  world.plans->close();
  const TimeNs begin_ns = world.clock->now_ns();
  CHECK(world.store->close(kNsPerS).is_ok());
  CHECK(world.clock->now_ns() - begin_ns < 10 * kNsPerS);
  CHECK(late.job->is_ended());
  CHECK(load.job->outcomes()[0] == Outcome::kCancelled);
  CHECK(load.job->undefined_indices() == std::vector<std::size_t>{0, 1, 2, 3});
  RankResult answer;
  answer.plan_id = plan.plan_id;
  answer.arena_id = plan.arena_id;
  CHECK_FALSE(world.finish(answer));
  world.reopen();
  CHECK(count_done(world.get(world.space, 0, 8, kBytes)) == 4);
}

TEST_CASE("answers that do not fit are refused and leave the plan as it was") {
  PlannedWorld world;
  const PlannedJob save = world.save(0, 4);
  const MovePlan plan = world.take_one(save);
  const RankResult good = world.ranks[0].carry_out(plan);
  const auto refusal_of = [&world](const RankResult& result) {
    auto finished = world.plans->finish(result);
    REQUIRE_FALSE(finished.is_ok());
    CHECK(finished.status().code() == StatusCode::kInvalidArgument);
    return finished.status().message();
  };
  RankResult bad = good;
  bad.rank = 2;
  CHECK(refusal_of(bad).find("num_ranks=2") != std::string::npos);
  bad = good;
  bad.parts = {1, 2};
  CHECK(refusal_of(bad).find("parts 1 to 3 of num_parts=2") != std::string::npos);
  bad = good;
  bad.checksums.pop_back();
  CHECK(refusal_of(bad).find("num_checksums=3, not 4") != std::string::npos);
  bad = good;
  bad.undefined_indices = {9};
  CHECK(refusal_of(bad).find("block 9") != std::string::npos);
  bad = good;
  bad.arena_id.bytes[0] ^= 1;  // Of the store that was here before.
  CHECK_FALSE(world.finish(bad));
  CHECK(world.finish(good));
  CHECK(world.finish(world.ranks[1].carry_out(plan)));
  world.end(save);
  CHECK(count_done(save.job->outcomes()) == 4);
}

TEST_CASE("a save needs every part, and ranks that share one the same bytes") {
  PlannedWorld world;
  const PlannedJob save = world.save(0, 4);
  const MovePlan plan = world.take_one(save);
  RankResult second = world.ranks[0].carry_out(plan);
  CHECK(world.finish(second));
  second.rank = 1;  // Part 0 once more; nobody brings part 1.
  CHECK(world.finish(second));
  world.end(save);
  CHECK(save.job->outcomes()[0] == Outcome::kFailed);
  CHECK(world.num_log_lines_with("no rank has part_index=1") == 1);

  const PlannedJob next = world.save(0, 4);
  const MovePlan both = world.take_one(next);
  RankResult whole = world.ranks[0].carry_out(both);
  const RankResult other = world.ranks[1].carry_out(both);
  std::vector<std::uint64_t> sums;
  for (std::size_t i = 0; i < 4; ++i) {
    sums.push_back(whole.checksums[i] ^ 1);
    sums.push_back(other.checksums[i]);
  }
  CHECK(world.finish(whole));
  RankResult differing = other;
  differing.parts = {0, 2};
  differing.checksums = sums;
  CHECK(world.finish(differing));
  world.end(next);
  CHECK(next.job->outcomes()[0] == Outcome::kFailed);
  CHECK(world.num_log_lines_with("different bytes") == 1);
}

TEST_CASE("a store that keeps its memory to itself says how to share it") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto arenas = world.store->shared_arenas();
  REQUIRE_FALSE(arenas.is_ok());
  CHECK(arenas.status().code() == StatusCode::kConfig);
  CHECK(arenas.status().message().find("shared_arena=True") != std::string::npos);
}
