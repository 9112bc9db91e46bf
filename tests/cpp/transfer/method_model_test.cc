// The method model: takes the cheapest that can be used, and learns when it was wrong.
#include "transfer/method_model.h"

#include <doctest/doctest.h>

#include <array>

namespace kvtier::testing {
namespace {

using namespace transfer;

constexpr auto kSave = TransferDirection::kSave;
constexpr auto kLoad = TransferDirection::kLoad;
constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1 << 20;

TEST_CASE("fragment classes are powers of two, and what lies beyond counts as the last") {
  CHECK(fragment_class_of(0) == 0);
  CHECK(fragment_class_of(1) == 0);
  CHECK(fragment_class_of(2047) == 0);
  CHECK(fragment_class_of(2048) == 1);
  CHECK(fragment_class_of(kMiB - 1) == 9);
  CHECK(fragment_class_of(kMiB) == 10);
  CHECK(fragment_class_of(UINT64_MAX) == 10);
  for (std::size_t index = 0; index < kNumFragmentClasses; ++index) {
    CHECK(fragment_class_of(fragment_bytes_of(index)) == index);
  }
}

TEST_CASE("without measurements small fragments are not given to the copy engine") {
  const MethodModel model;
  for (const auto direction : {kSave, kLoad}) {
    CHECK(model.choose(direction, 4 * kKiB, 256 * kMiB, {}) != TransferMethod::kCopyEngine);
    CHECK(model.choose(direction, kMiB, kMiB, {}) == TransferMethod::kCopyEngine);
  }
}

TEST_CASE("the cheapest allowed method is chosen, by latency when short and by rate when long") {
  MethodModel model;
  const std::size_t index = fragment_class_of(32 * kKiB);
  model.set_cost(kSave, TransferMethod::kCopyEngine, index, {1000, 100});
  model.set_cost(kSave, TransferMethod::kStaged, index, {40000, 20});
  model.set_cost(kSave, TransferMethod::kZeroCopy, index, {10000, 25});
  CHECK(model.choose(kSave, 32 * kKiB, 64 * kKiB, {}) == TransferMethod::kCopyEngine);
  CHECK(model.choose(kSave, 32 * kKiB, 896 * kKiB, {}) == TransferMethod::kZeroCopy);
  CHECK(model.choose(kSave, 32 * kKiB, 256 * kMiB, {}) == TransferMethod::kStaged);
  MethodSet without;
  without.is_allowed[static_cast<std::size_t>(TransferMethod::kStaged)] = false;
  CHECK(model.choose(kSave, 32 * kKiB, 256 * kMiB, without) == TransferMethod::kZeroCopy);
  without.is_allowed[static_cast<std::size_t>(TransferMethod::kZeroCopy)] = false;
  CHECK(model.choose(kSave, 32 * kKiB, 256 * kMiB, without) == TransferMethod::kCopyEngine);
}

TEST_CASE("transfers that take longer than expected change the choice, of their kind only") {
  MethodModel model;
  const std::size_t index = fragment_class_of(16 * kKiB);
  for (const auto direction : {kSave, kLoad}) {
    model.set_cost(direction, TransferMethod::kStaged, index, {0, 20});
    model.set_cost(direction, TransferMethod::kZeroCopy, index, {0, 21});
  }
  REQUIRE(model.choose(kLoad, 16 * kKiB, 256 * kMiB, {}) == TransferMethod::kStaged);
  const TimeNs expected_ns =
      static_cast<TimeNs>(model.expected_ns(kLoad, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB));
  for (int turn = 0; turn < 3; ++turn) {
    model.correct(kLoad, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB, expected_ns * 3 / 2);
  }
  CHECK(model.choose(kLoad, 16 * kKiB, 256 * kMiB, {}) == TransferMethod::kZeroCopy);
  CHECK(model.choose(kLoad, 16 * kKiB, kMiB, {}) == TransferMethod::kStaged);
  CHECK(model.choose(kSave, 16 * kKiB, 256 * kMiB, {}) == TransferMethod::kStaged);
  // And back, when it is as fast as expected again.
  for (int turn = 0; turn < 40; ++turn) {
    model.correct(kLoad, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB, expected_ns);
  }
  CHECK(model.choose(kLoad, 16 * kKiB, 256 * kMiB, {}) == TransferMethod::kStaged);
}

TEST_CASE("a single outlier moves the expectation by a bounded factor, and no time by nothing") {
  MethodModel model;
  const auto expected = [&] {
    return model.expected_ns(kSave, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB);
  };
  const double before = expected();
  model.correct(kSave, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB, 0);
  CHECK(expected() == before);
  model.correct(kSave, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB, kNeverNs / 2);
  CHECK(expected() <= 4 * before);
  for (int turn = 0; turn < 100; ++turn) {
    model.correct(kSave, TransferMethod::kStaged, 16 * kKiB, 256 * kMiB, 1);
  }
  CHECK(expected() >= before / 4);
  CHECK(expected() < before);
}

}  // namespace
}  // namespace kvtier::testing
