// What callers get of an engine while the device holds up others: no call of a driver is made with
// the engine's mutex held.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::TransferJobId;
using transfer::TransferMethod;

/// Lets another thread use the engine during each call of the device.
class Onlooker {
 public:
  explicit Onlooker(TransferWorld& world) : engine_(*world.engine), device_(world.device) {
    world.device.on_any_call = [this] {
      ++num_calls;
      // Kept: who waits in vain is waited for when the call of the device is over.
      looks_.push_back(std::async(std::launch::async, [this] {
        (void)engine_.stats();
        (void)engine_.note();
      }));
      if (looks_.back().wait_for(std::chrono::seconds(10)) == std::future_status::ready) return;
      ++num_held_up;
    };
  }

  ~Onlooker() { device_.on_any_call = nullptr; }
  Onlooker(const Onlooker&) = delete;
  Onlooker& operator=(const Onlooker&) = delete;

  int num_calls = 0;
  int num_held_up = 0;

 private:
  transfer::TransferEngine& engine_;
  DeviceDouble& device_;
  std::vector<std::future<void>> looks_;
};

TEST_CASE("whatever a device is asked, others get through the engine meanwhile") {
  for (const bool is_locked : {false, true}) {
    CAPTURE(is_locked);
    TransferWorldOptions options;
    options.is_gpu = true;
    TransferWorld world(kPlainShape, options);
    if (!is_locked) world.host.set_page_lock_limit_bytes(0);
    Onlooker onlooker(world);
    const auto num_calls_of = [&](const auto& call) {
      const int before = onlooker.num_calls;
      call();
      CHECK(onlooker.num_held_up == 0);
      return onlooker.num_calls - before;
    };
    transfer::AttachmentId other = 0;
    CHECK(num_calls_of([&] { other = world.attach(); }) > 0);
    CHECK(num_calls_of([&] { CHECK(world.engine->detach(other).is_ok()); }) > 0);
    CHECK(num_calls_of([&] {
            CHECK(world.engine->begin_host_memory(world.arena).is_ok());
            world.settle();
          }) > 0);
    for (const auto direction : {kSave, kLoad}) {
      for (const TransferMethod method : {TransferMethod::kCopyEngine, TransferMethod::kStaged}) {
        world.write_block(1, world.payload(1));
        const auto bytes = world.payload(1);
        std::copy(bytes.begin(), bytes.end(), world.slot(0).begin());
        TransferJobId job_id = 0;
        CHECK(num_calls_of([&] { job_id = world.submit(direction, {{1, 0, 1}}, method); }) > 0);
        CHECK(num_calls_of([&] { world.engine->advance(); }) > 0);
        CHECK(num_calls_of([&] {
                const Status ordered = world.engine->order_stream_after(job_id, {7}, kNeverNs);
                CHECK_MESSAGE(ordered.is_ok(), ordered.to_string());
              }) > 0);
        CHECK(num_calls_of([&] { world.settle(); }) > 0);
        CHECK(world.take(job_id).status.is_ok());
      }
    }
    const TransferJobId cut_short = world.submit(kSave, {{1, 0, 1}});
    world.engine->cancel(cut_short);
    world.settle();
    (void)num_calls_of([&] {
      CHECK(world.engine->close(0));
      world.engine->remove_host_memory(world.arena);
    });
  }
}

TEST_CASE("a stream is ordered after a job that ends while the device is told") {
  TransferWorld world(kPlainShape);
  world.host.set_copy_delay_ns(kNsPerMs);
  world.write_block(1, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{1, 0, 1}});
  world.engine->advance();
  bool has_settled = false;
  world.device.on_any_call = [&] {
    if (std::exchange(has_settled, true)) return;
    world.settle();
    CHECK(world.take(job_id).status.is_ok());
  };
  // Its event is still an event, not another job's by now.
  CHECK(world.engine->order_stream_after(job_id, {7}, 0).is_ok());
  CHECK(has_settled);
  CHECK(are_equal(world.slot(0), world.payload(1)));
}

}  // namespace
}  // namespace kvtier::testing
