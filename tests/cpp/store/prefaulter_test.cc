// Memory that is provided ahead of its use: how far, and that nothing in it is touched.
#include "store/prefaulter.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "memory/resident.h"
#include "real_store.h"
#include "tier_parts.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

namespace {

constexpr std::uint64_t kMiB = 1ull << 20;

struct Machine {
  explicit Machine(std::uint32_t num_copy_threads)
      : executor(make_thread_executor(clock, num_copy_threads)) {
    executor->start([] { return kNeverNs; });
  }
  ~Machine() { executor->stop(); }

  /// As much as an arena has when nothing more is coming.
  bool waits_for(const Prefaulter& prefaulter, std::uint64_t ready_bytes) {
    const TimeNs until_ns = clock.now_ns() + 30 * kNsPerS;
    while (prefaulter.ready_bytes() < ready_bytes && clock.now_ns() < until_ns) usleep(1000);
    return prefaulter.ready_bytes() == ready_bytes;
  }

  SystemClock clock;
  std::shared_ptr<Executor> executor;
};

bool waits_for_resident(std::span<std::byte> memory, std::uint64_t num_bytes) {
  for (int i = 0; i < 30'000 && resident_bytes(memory) < num_bytes; ++i) usleep(1000);
  return resident_bytes(memory) == num_bytes;
}

std::span<std::byte> all_of(const Arena& arena) { return {arena.base(), arena.num_bytes()}; }

std::shared_ptr<Arena> arena_of(std::uint64_t num_bytes) {
  return std::shared_ptr<Arena>(std::move(Arena::create(num_bytes)).value());
}

}  // namespace

TEST_CASE("an arena's memory is there ahead of its use, and no further") {
  if (!can_populate()) return;
  Machine machine(1);
  const auto arena = arena_of(64 * kMiB);
  std::memset(arena->base() + 4 * kMiB, 0x5a, 8 * kMiB);
  Prefaulter prefaulter(machine.executor, arena, 16 * kMiB);
  REQUIRE(machine.waits_for(prefaulter, 16 * kMiB));
  CHECK(resident_bytes(all_of(*arena)) == 16 * kMiB);
  prefaulter.note_used(20 * kMiB);
  REQUIRE(machine.waits_for(prefaulter, 36 * kMiB));
  CHECK(resident_bytes(all_of(*arena)) == 36 * kMiB);
  prefaulter.note_used(8 * kMiB);  // Of a segment that lies before others.
  prefaulter.note_used(60 * kMiB);
  REQUIRE(machine.waits_for(prefaulter, 64 * kMiB));
  // What was written before is still there, and the rest reads as zero.
  for (std::uint64_t at = 0; at < 64 * kMiB; at += 4096) {
    const bool is_written = at >= 4 * kMiB && at < 12 * kMiB;
    REQUIRE(arena->base()[at] == (is_written ? std::byte{0x5a} : std::byte{0}));
  }
}

TEST_CASE("without copy threads memory is left to its first touch") {
  class OneThread final : public Executor {
   public:
    void start(Pump) override {}
    void wake() override {}
    void notify() override {}
    bool wait(std::unique_lock<std::mutex>&, const std::function<bool()>&, TimeNs) override {
      return true;
    }
    void post(StepPriority, CopyPool::Step) override { ++num_posts; }
    void split(std::size_t, const CopyPool::Piece&) override {}
    std::uint32_t num_copy_threads() const override { return num_threads; }
    void stop() override {}

    std::uint32_t num_threads = 0;
    std::size_t num_posts = 0;
  };
  const auto executor = std::make_shared<OneThread>();
  Prefaulter idle(executor, arena_of(8 * kMiB), 8 * kMiB);
  idle.note_used(4 * kMiB);
  CHECK(executor->num_posts == 0);
  executor->num_threads = 1;
  Prefaulter busy(executor, arena_of(8 * kMiB), 8 * kMiB);
  busy.note_used(4 * kMiB);
  CHECK(executor->num_posts == 1);  // One step at a time.
}

TEST_CASE("a system that provides nothing is asked once") {
  Machine machine(1);
  const auto arena = arena_of(64 * kMiB);
  // Pages that nobody may write stand for memory that cannot be had.
  REQUIRE(mprotect(arena->base() + 8 * kMiB, 4 * kMiB, PROT_NONE) == 0);
  Prefaulter prefaulter(machine.executor, arena, 64 * kMiB);
  CHECK(machine.waits_for(prefaulter, 64 * kMiB));
  CHECK(resident_bytes(all_of(*arena)) == (can_populate() ? 8 * kMiB : 0));
}

TEST_CASE("a prefaulter that is gone leaves its steps what they need") {
  Machine machine(1);
  for (int i = 0; i < 8; ++i) {
    Prefaulter(machine.executor, arena_of(32 * kMiB), 32 * kMiB);
  }
}

TEST_CASE("a store that opens provides the memory of its first blocks, and more as they come") {
  if (!can_populate()) return;
  RealStore real;
  real.options.host_bytes = 128 * kMiB;
  real.options.staging_bytes = 8 * kMiB;
  real.options.num_copy_threads = 1;
  real.options.prefault_bytes = 64 * kMiB;
  real.options.numa.mode = NumaMode::kOff;
  REQUIRE(real.open().is_ok());
  const auto memories = real.store->host_memory();
  REQUIRE(memories.is_ok());
  const std::span<std::byte> host = memories.value().front().bytes;
  const std::span<std::byte> staging = memories.value().back().bytes;
  REQUIRE(host.size() == 128 * kMiB);
  CHECK(waits_for_resident(host, 32 * kMiB));
  CHECK(waits_for_resident(staging, 2 * kMiB));
  const auto space = real.add_namespace(kMiB);
  CHECK(count_done(real.put(space, 0, 20, kMiB)) == 20);
  // A quarter beyond the segments of 4 MiB.
  CHECK(waits_for_resident(host, 52 * kMiB));
  CHECK(count_done(real.get(space, 0, 20, kMiB)) == 20);
  CHECK(real.num_wrong == 0);
}
