// Which uses a full tier takes for a second one.
#include <doctest/doctest.h>

#include "store/admission_policy.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

namespace {

bool is_admitted(AdmissionPolicy& policy, std::uint64_t number, std::uint64_t request,
                 bool is_full = true) {
  AdmissionQuestion question;
  question.key = key_of(number);
  question.request_hash = request;
  question.is_tier_full = is_full;
  return policy.is_admitted(question);
}

}  // namespace

TEST_CASE("a full tier takes a block at its second request, not at the second call of one") {
  const auto policy = make_second_use_admission(64);
  for (int call = 0; call < 5; ++call) CHECK_FALSE(is_admitted(*policy, 1, 7));
  CHECK(is_admitted(*policy, 1, 8));
  CHECK_FALSE(is_admitted(*policy, 2, 8));
  CHECK(is_admitted(*policy, 3, 9, false));
}

TEST_CASE("without a request each call counts, and old first uses are forgotten") {
  const auto policy = make_second_use_admission(2);
  CHECK_FALSE(is_admitted(*policy, 1, 0));
  CHECK(is_admitted(*policy, 1, 0));
  for (std::uint64_t number = 2; number < 5; ++number) CHECK_FALSE(is_admitted(*policy, number, 0));
  CHECK_FALSE(is_admitted(*policy, 2, 0));
}
