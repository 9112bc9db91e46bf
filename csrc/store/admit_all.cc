// The admission policy that takes everything. Stateless.
#include "store/admission_policy.h"

namespace kvtier::store {
namespace {

class AdmitAll final : public AdmissionPolicy {
 public:
  bool is_admitted(const AdmissionQuestion& /*question*/) override { return true; }
};

}  // namespace

std::unique_ptr<AdmissionPolicy> make_admit_all() { return std::make_unique<AdmitAll>(); }

}  // namespace kvtier::store
