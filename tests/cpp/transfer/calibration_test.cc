// The calibration: kept for one device, driver and budget; anything else is measured anew, and a
// file that cannot be used or written stops nobody.
#include "transfer/calibration.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "device/host_device.h"
#include "testing/temporary_folder.h"
#include "testing/without_leak_check.h"

namespace kvtier::testing {
namespace {

using namespace transfer;

const std::string kIdentity = "Some GPU 0123456789abcdef driver 13000";

template <typename Call>
void for_each_cost(const Call& call) {
  for (std::size_t index = 0; index < kNumDirections * kNumMethods * kNumFragmentClasses; ++index) {
    call(static_cast<TransferDirection>(index % kNumDirections),
         static_cast<TransferMethod>(index / kNumDirections % kNumMethods),
         index / kNumDirections / kNumMethods, static_cast<double>(index));
  }
}

// Costs that no measurement gives, different in each place.
MethodModel make_model() {
  MethodModel model;
  for_each_cost(
      [&](TransferDirection direction, TransferMethod method, std::size_t index, double number) {
        model.set_cost(direction, method, index, {1000 + number / 3, number * 7.25});
      });
  return model;
}

bool are_same(const MethodModel& one, const MethodModel& other) {
  bool is_same = true;
  for_each_cost([&](TransferDirection direction, TransferMethod method, std::size_t index, double) {
    is_same = is_same && one.cost(direction, method, index) == other.cost(direction, method, index);
  });
  return is_same;
}

TEST_CASE("a calibration that was written is read back to the last digit") {
  const std::string text = write_calibration(make_model(), kIdentity, {});
  const auto read = read_calibration(text, kIdentity, {});
  REQUIRE(read.has_value());
  CHECK(are_same(*read, make_model()));
  CHECK_FALSE(are_same(*read, MethodModel()));
}

TEST_CASE("a calibration of another device, driver or budget is not used") {
  const std::string text = write_calibration(make_model(), kIdentity, {});
  CHECK_FALSE(read_calibration(text, "Some GPU 0123456789abcdef driver 12090", {}));
  CHECK_FALSE(read_calibration(text, "Some GPU 0123456789abcdee driver 13000", {}));
  CHECK_FALSE(read_calibration(text, "", {}));
  TransferOptions options;
  options.max_ctas = 4;
  CHECK_FALSE(read_calibration(text, kIdentity, options));
  options = {};
  options.chunk_bytes = 4 << 20;
  CHECK_FALSE(read_calibration(text, kIdentity, options));
}

TEST_CASE("a calibration with any byte changed, or cut off anywhere, is not used") {
  const std::string text = write_calibration(make_model(), kIdentity, {});
  for (std::size_t place = 0; place < text.size(); ++place) {
    std::string damaged = text;
    damaged[place] = damaged[place] == '7' ? '8' : '7';
    CHECK_FALSE(read_calibration(damaged, kIdentity, {}));
    CHECK_FALSE(read_calibration(text.substr(0, place), kIdentity, {}));
  }
  CHECK_FALSE(read_calibration(text + "7", kIdentity, {}));
  CHECK_FALSE(read_calibration("", kIdentity, {}));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// An engine over the host device, which is told to be worth a choice.
class CalibratedEngine {
 public:
  explicit CalibratedEngine(const std::string& path) {
    host_.set_memory_unified(false);
    TransferOptions options;
    options.calibration_path = path;
    auto made = TransferEngine::create(host_, clock_, options);
    REQUIRE_MESSAGE(made.is_ok(), made.status().to_string());
    engine_ = std::move(made).value();
  }
  static std::string identity() {
    SystemClock clock;
    return HostDevice(clock).info().identity;
  }
  TransferEngine& engine() { return *engine_; }

  bool is_saving() {
    std::vector<std::byte> memory(4096, std::byte{7});
    std::vector<std::byte> slot(4096);
    const layout::TensorPlace tensor{memory.data(), memory.size()};
    const layout::FragmentPlace fragment{0, 0, 4096, 4096};
    const std::uint64_t part_bytes = 4096;
    TransferRequest request;
    request.attachment_id = engine_->attach({&tensor, 1}, {&fragment, 1}, {&part_bytes, 1}).value();
    const std::int64_t block_id = 0;
    std::byte* place = slot.data();
    request.block_ids = {&block_id, 1};
    request.slots = {&place, 1};
    const TransferJobId job_id = engine_->submit(request).value();
    return engine_->wait(job_id, clock_.now_ns() + 60 * kNsPerS) && slot == memory;
  }

 private:
  SystemClock clock_;
  HostDevice host_{clock_};
  std::unique_ptr<TransferEngine> engine_;
};

TEST_CASE("a kept calibration is taken without measuring") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/calibration";
  const std::string text = write_calibration(make_model(), CalibratedEngine::identity(), {});
  std::ofstream(path) << text;
  CalibratedEngine calibrated(path);
  CHECK(are_same(calibrated.engine().model(), make_model()));
  CHECK(calibrated.engine().note().empty());
  CHECK(calibrated.engine().stats().num_chunks == 0);
  CHECK(read_text(path) == text);
  CHECK(calibrated.is_saving());
}

TEST_CASE("a damaged calibration is measured anew and replaced, or the note says why not") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/calibration";
  const std::string identity = CalibratedEngine::identity();
  const std::string text = write_calibration(make_model(), identity, {});
  std::ofstream(path) << text.substr(0, text.size() / 2);
  CalibratedEngine calibrated(path);
  CHECK_FALSE(are_same(calibrated.engine().model(), make_model()));
  CHECK(calibrated.engine().stats().num_chunks > 0);
  // A machine that is busy with something else may not get there in time.
  const std::string note = calibrated.engine().note();
  if (note.empty()) {
    const auto kept = read_calibration(read_text(path), identity, {});
    REQUIRE(kept.has_value());
    CHECK(are_same(*kept, calibrated.engine().model()));
  } else {
    CHECK_MESSAGE(note.find("cannot measure methods") != std::string::npos, note);
  }
  CHECK(calibrated.is_saving());
}

TEST_CASE("a calibration is held up neither by the default stream nor by work that never ends") {
  // What is in flight for ever keeps its memory.
  const WithoutLeakCheck without_leak_check;
  SystemClock clock;
  HostDevice host(clock);
  host.set_memory_unified(false);
  host.submit_kernel(StreamId{0}, kNeverNs, [] {});
  const auto engine = std::move(TransferEngine::create(host, clock, {})).value();
  CHECK(engine->stats().num_chunks > 0);
  HostDevice stuck(clock);
  stuck.set_memory_unified(false);
  stuck.set_copy_delay_ns(kNeverNs);
  for (const bool has_thread : {false, true}) {
    TransferOptions options;
    options.has_thread = has_thread;
    const auto slow = std::move(TransferEngine::create(stuck, clock, options)).value();
    CHECK(slow->note().find("cannot measure methods") != std::string::npos);
    // The scratch memory is the device's as long as it is in flight.
    CHECK(slow->stats().page_locked_bytes > 0);
  }
}

TEST_CASE("a calibration that cannot be written is used all the same, and the note says so") {
  const TemporaryFolder folder;
  CalibratedEngine calibrated(folder.path() + "/no_such_folder/calibration");
  const std::string note = calibrated.engine().note();
  const bool is_said = note.find("no_such_folder") != std::string::npos ||
                       note.find("cannot measure methods") != std::string::npos;
  CHECK_MESSAGE(is_said, note);
  CHECK(calibrated.is_saving());
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace kvtier::testing
