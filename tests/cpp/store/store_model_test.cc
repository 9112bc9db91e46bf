// Random calls, faults and crashes from a seed, every answer held against a model of what may be
// true. The payload of a block names its key and generation, so a swapped, shifted or stale one
// cannot pass. Some calls are jobs that go on behind the others; their buffers are overwritten as
// soon as they have ended.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "job_calls.h"
#include "model_pins.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

struct Shape {
  std::uint64_t block_bytes;
  std::vector<std::uint64_t> part_bytes;
};

/// What is known of one key of one namespace.
struct Known {
  std::uint64_t generation = 0;      // The next put writes this one.
  std::set<std::uint64_t> possible;  // Generations that may be stored.
};

class Model {
 public:
  Model(std::uint64_t seed, bool has_faults)
      : random_(seed), has_faults_(has_faults), world_(seed, sim()) {
    world_.options.host_bytes = random_.below(4) == 0 ? 0 : (1 + random_.below(3)) << 20;
    world_.options.disk_bytes = (2 + random_.below(6)) << 20;
    world_.options.staging_bytes = 1 << 20;
    world_.timeout_ns = 2 * kNsPerS;
    shapes_ = {{4096, {}}, {1000, {}}, {70000, {}}, {20000, {5000, 0, 15000}}};
  }

  void run(int num_steps) {
    open();
    for (int step = 0; step < num_steps; ++step) {
      CAPTURE(step);
      set_faults();
      one_step();
      CHECK(world_.disk->allocated_bytes() <= world_.options.disk_bytes);
      const Status consistent = world_.store->check_consistency();
      REQUIRE_MESSAGE(consistent.is_ok(), consistent.to_string());
      if (!has_faults_) pins_.check(spaces_);
    }
    world_.disk->faults() = SimFaults{};
    CHECK(world_.store->close(5 * kNsPerS).is_ok());
    drop_jobs();
  }

 private:
  static SimOptions sim() {
    SimOptions options;
    options.capacity_bytes = 64 << 20;
    return options;
  }

  void open() {
    world_.disk->faults() = SimFaults{};
    const Status opened = world_.open();
    REQUIRE_MESSAGE(opened.is_ok(), opened.to_string());
    spaces_.clear();
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      spaces_.push_back(world_.add_namespace(shapes_[i].block_bytes, i, shapes_[i].part_bytes));
    }
  }

  void set_faults() {
    SimFaults& faults = world_.disk->faults();
    faults = SimFaults{};
    if (!has_faults_ || random_.below(3) != 0) return;
    faults.read_error = 0.05;
    faults.write_error = 0.02;
    faults.read_flip = 0.05;
    if (is_losing_pages_) faults.write_flip = 0.02;
    faults.misdirected_read = 0.03;
    if (is_losing_pages_) faults.misdirected_write = 0.02;
    faults.short_transfer = 0.05;
    faults.torn_write = 0.03;
  }

  void one_step() {
    const std::uint64_t choice = random_.below(100);
    if (choice < 22) return put();
    if (choice < 40) return begin_job(true);
    if (choice < 56) return get();
    if (choice < 68) return begin_job(false);
    if (choice < 75) return look_at_job();
    if (choice < 76) return prefetch();
    if (choice < 79) return lease();
    if (choice < 80) return pin();
    if (choice < 81) return unpin();
    if (choice < 84) return erase();
    if (choice < 88) return flush();
    if (choice < 89) return clear();
    if (choice < 92) return restart();
    if (choice < 95) return crash();
    world_.clock->advance_ns(static_cast<TimeNs>(random_.below(20)) * kNsPerS);
    run_for_ns(*world_.executor, 10 * kNsPerMs);
  }

  std::size_t pick_space() { return random_.below(shapes_.size()); }

  /// A path through a small tree of keys: chain c, from block 0 on.
  static std::uint64_t number_of(std::uint64_t chain, std::uint64_t depth) {
    return chain * 100 + depth;
  }

  void put() {
    const std::size_t s = pick_space();
    const std::uint64_t chain = random_.below(6);
    const std::size_t first = random_.below(3) == 0 ? random_.below(10) : 0;
    const std::size_t num_blocks = 1 + random_.below(12);
    const auto keys = keys_of(number_of(chain, first), num_blocks);
    std::vector<std::vector<std::byte>> payloads;
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      const std::uint64_t number = number_of(chain, first + i);
      Known& known = known_[{s, number}];
      known.possible.insert(known.generation);
      payloads.push_back(payload_of(number, shapes_[s].block_bytes, known.generation));
      sources.push_back(payloads.back().data());
    }
    PutRequest request;
    request.namespace_index = spaces_[s];
    request.keys = keys;
    request.sources = sources;
    if (first > 0) request.parent = key_of(number_of(chain, first - 1));
    request.timeout_ns = world_.timeout_ns;
    auto outcomes = world_.store->put(request);
    REQUIRE_MESSAGE(outcomes.is_ok(), outcomes.status().to_string());
  }

  void get() {
    const std::size_t s = pick_space();
    const std::uint64_t chain = random_.below(6);
    const std::size_t num_blocks = 1 + random_.below(20);
    const bool is_prefix = random_.below(3) != 0;
    const auto keys = keys_of(number_of(chain, 0), num_blocks);
    const std::uint64_t block_bytes = shapes_[s].block_bytes;
    const std::vector<std::byte> canary(block_bytes, std::byte{0x5c});
    std::vector<std::vector<std::byte>> targets(num_blocks, canary);
    std::vector<std::byte*> addresses;
    for (auto& target : targets) addresses.push_back(target.data());
    GetRequest request;
    request.namespace_index = spaces_[s];
    request.keys = keys;
    request.targets = addresses;
    request.is_prefix = is_prefix;
    request.timeout_ns = world_.timeout_ns;
    auto outcomes = world_.store->get(request);
    REQUIRE_MESSAGE(outcomes.is_ok(), outcomes.status().to_string());
    bool is_prefix_over = false;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      const bool is_done = outcomes.value()[i] == Outcome::kDone;
      if (is_prefix && is_prefix_over) REQUIRE(outcomes.value()[i] == Outcome::kMiss);
      is_prefix_over |= !is_done;
      if (is_done) {
        check_payload(s, number_of(chain, i), targets[i]);
      } else {
        REQUIRE(targets[i] == canary);
      }
    }
  }

  struct PendingJob {
    std::size_t shape = 0;
    std::uint64_t chain = 0;
    std::size_t depth = 0;
    bool is_put = false;
    bool is_prefix = true;
    JobCall call;
  };

  void begin_job(bool is_put) {
    PendingJob pending;
    pending.shape = pick_space();
    pending.chain = random_.below(6);
    pending.is_put = is_put;
    Store& store = *world_.store;
    BlockRun run{spaces_[pending.shape], 0, 1 + random_.below(is_put ? 12 : 20),
                 shapes_[pending.shape].block_bytes};
    if (is_put) {
      pending.depth = random_.below(3) == 0 ? random_.below(10) : 0;
      run.first = number_of(pending.chain, pending.depth);
      // All of a job's blocks in one generation: the newest of any of them.
      std::uint64_t generation = 0;
      for (std::size_t i = 0; i < run.num_blocks; ++i) {
        generation = std::max(generation, known_[{pending.shape, run.first + i}].generation);
      }
      for (std::size_t i = 0; i < run.num_blocks; ++i) {
        Known& known = known_[{pending.shape, run.first + i}];
        known.generation = generation;
        known.possible.insert(generation);
      }
      std::optional<BlockKey> parent;
      if (pending.depth > 0) parent = key_of(run.first - 1);
      pending.call = start_put(store, run, world_.timeout_ns, parent, generation);
    } else {
      run.first = number_of(pending.chain, 0);
      pending.is_prefix = random_.below(3) != 0;
      pending.call = start_get(store, run, world_.timeout_ns, pending.is_prefix);
    }
    REQUIRE(pending.call.job);
    jobs_.push_back(std::move(pending));
    if (jobs_.size() > 12) look_at_job();
  }

  /// Waits for, cancels or polls one of the jobs; what has ended is checked and its buffer reused.
  void look_at_job() {
    if (jobs_.empty()) return;
    const std::size_t job_index = random_.below(jobs_.size());
    const Job& job = *jobs_[job_index].call.job;
    const std::uint64_t choice = random_.below(4);
    if (choice < 2) REQUIRE(world_.store->cancel_job(job).is_ok());
    if (choice != 3) (void)world_.store->wait_job(job, 10 * kNsPerS).is_ok();
    REQUIRE(world_.store->poll_jobs().is_ok());
    std::erase_if(jobs_, [this](PendingJob& pending) {
      if (!pending.call.job->is_ended()) return false;
      check_job(pending);
      return true;
    });
  }

  void check_job(PendingJob& pending) {
    REQUIRE(pending.call.job->status().is_ok());
    if (!pending.is_put) {
      const auto canary = canary_of(pending.call.block_bytes);
      bool is_prefix_over = false;
      for (std::size_t i = 0; i < pending.call.buffers.size(); ++i) {
        const bool is_done = pending.call.outcomes()[i] == Outcome::kDone;
        if (pending.is_prefix && is_prefix_over) {
          REQUIRE(pending.call.outcomes()[i] == Outcome::kMiss);
        }
        is_prefix_over |= !is_done;
        if (!is_done) {
          REQUIRE(pending.call.buffers[i] == canary);
        } else {
          check_payload(pending.shape, number_of(pending.chain, i), pending.call.buffers[i]);
        }
      }
    }
    for (auto& buffer : pending.call.buffers) {
      std::fill(buffer.begin(), buffer.end(), std::byte{0xee});
    }
  }

  /// The store is closed: all jobs have ended.
  void drop_jobs() {
    for (PendingJob& pending : jobs_) {
      REQUIRE(pending.call.job->is_ended());
      check_job(pending);
    }
    jobs_.clear();
  }

  /// Before payloads get new generations: a job that began earlier still writes and reads old ones.
  void end_jobs() {
    for (const PendingJob& pending : jobs_) {
      REQUIRE(world_.store->wait_job(*pending.call.job, 10 * kNsPerS).is_ok());
    }
    drop_jobs();
  }

  void prefetch() {
    REQUIRE(
        world_.store->prefetch(spaces_[pick_space()], keys_of(number_of(random_.below(6), 0), 12))
            .is_ok());
  }

  void check_payload(std::size_t s, std::uint64_t number, const std::vector<std::byte>& bytes) {
    bool is_known = false;
    for (const std::uint64_t generation : known_[{s, number}].possible) {
      is_known |= bytes == payload_of(number, shapes_[s].block_bytes, generation);
    }
    REQUIRE_MESSAGE(is_known, "wrong or stale bytes: number=" << number << " space=" << s);
  }

  void lease() {
    const std::size_t s = pick_space();
    const std::uint64_t chain = random_.below(6);
    auto leased = world_.store->lease(spaces_[s], keys_of(number_of(chain, 0), 8), true,
                                      static_cast<TimeNs>(random_.below(5)) * kNsPerS);
    REQUIRE(leased.is_ok());
    if (leased.value().lease_id != 0 && random_.below(2) == 0) {
      world_.store->release(leased.value().lease_id);
    }
  }

  void pin() {
    const std::size_t s = pick_space();
    const std::uint64_t first = number_of(random_.below(6), 0);
    pins_.pin(spaces_[s], s, first, 1 + random_.below(8));
  }

  void unpin() {
    const std::size_t s = pick_space();
    const std::uint64_t first = number_of(random_.below(6), 0);
    pins_.unpin(spaces_[s], s, first, 1 + random_.below(8), has_faults_);
  }

  /// After a restart: a smaller cap ends pins, and a crash may bring back the one or the other.
  void end_pins() {
    pins_.forget();
    for (const std::uint32_t space : spaces_) {
      for (std::uint64_t chain = 0; chain < 6; ++chain) pins_.end(space, number_of(chain, 0), 30);
    }
  }

  /// After a durable delete no older generation may ever come back.
  void erase() {
    end_jobs();
    const std::size_t s = pick_space();
    const std::uint64_t number = number_of(random_.below(6), random_.below(4));
    auto erased = world_.store->erase(spaces_[s], std::vector<BlockKey>{key_of(number)});
    const auto still =
        world_.store->lookup(spaces_[s], std::vector<BlockKey>{key_of(number)}, true);
    REQUIRE(still.is_ok());
    pins_.forget_gone(spaces_);
    if (!erased.is_ok() || still.value().num_blocks > 0 || is_losing_pages_) return;
    Known& known = known_[{s, number}];
    known.possible.clear();
    ++known.generation;
  }

  void flush() { (void)world_.store->flush(2 * kNsPerS).is_ok(); }

  void clear() {
    end_jobs();
    auto cleared = world_.store->clear(true, true);
    pins_.forget();
    if (!cleared.is_ok() || is_losing_pages_) return;
    for (auto& [key, known] : known_) {
      known.possible.clear();
      ++known.generation;
    }
  }

  void restart() {
    world_.disk->faults() = SimFaults{};
    // What the disk has no room for ends with its host copy.
    flush();
    const bool is_all_on_disk = world_.store->stats().host.pinned_bytes == 0;
    REQUIRE(world_.store->close(5 * kNsPerS).is_ok());
    drop_jobs();
    world_.store.reset();
    const bool is_resized = random_.below(4) == 0;
    if (is_resized) world_.options.disk_bytes = (2 + random_.below(6)) << 20;
    open();
    if (is_resized || has_faults_ || !is_all_on_disk) end_pins();
  }

  void crash() {
    world_.crash(random_.below(2) == 0);
    drop_jobs();
    open();
    end_pins();
  }

  Random random_;
  const bool has_faults_;
  // A table page that the disk silently wrote elsewhere keeps its old entries: whoever does not
  // read back cannot know. In such runs a deleted block may return, with its own bytes.
  const bool is_losing_pages_ = has_faults_ && random_.below(2) == 0;
  StoreWorld world_;
  std::vector<Shape> shapes_;
  std::vector<std::uint32_t> spaces_;
  std::map<std::pair<std::size_t, std::uint64_t>, Known> known_;
  ModelPins pins_{world_};
  std::vector<PendingJob> jobs_;
};

std::uint64_t number_from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

void run_seeds(bool has_faults) {
  const std::uint64_t first = number_from_environment("KVTIER_MODEL_SEED", 1);
  const std::uint64_t num_seeds = number_from_environment("KVTIER_MODEL_SEEDS", 25);
  for (std::uint64_t seed = first; seed < first + num_seeds; ++seed) {
    CAPTURE(seed);  // Replay: KVTIER_MODEL_SEED=<seed> KVTIER_MODEL_SEEDS=1.
    Model(seed, has_faults).run(150);
  }
}

}  // namespace

TEST_CASE("random calls and crashes never give wrong bytes") { run_seeds(false); }

TEST_CASE("random calls, crashes and disk faults never give wrong bytes") { run_seeds(true); }
