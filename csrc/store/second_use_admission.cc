// Admission to a full tier at the second use by another request. Guarded by the store's mutex.
#include "store/admission_policy.h"
#include "store/ghost_table.h"
#include "store/reuse_history.h"

namespace kvtier::store {
namespace {

class SecondUseAdmission final : public AdmissionPolicy {
 public:
  explicit SecondUseAdmission(std::uint32_t num_ghosts) : ghosts_(num_ghosts) {}

  bool is_admitted(const AdmissionQuestion& question) override {
    if (!question.is_tier_full) return true;
    const std::uint32_t tag = key_tag_of(question.namespace_index, question.key);
    const auto request = static_cast<std::uint32_t>(
        question.request_hash != 0 ? question.request_hash : ++num_calls_);
    const auto first = ghosts_.find(tag);
    if (!first) ghosts_.insert(tag, request);
    if (!first || *first == request) return false;
    ghosts_.remove(tag);
    return true;
  }

 private:
  GhostTable ghosts_;
  std::uint64_t num_calls_ = 0;
};

}  // namespace

std::unique_ptr<AdmissionPolicy> make_second_use_admission(std::uint32_t num_ghosts) {
  return std::make_unique<SecondUseAdmission>(num_ghosts);
}

}  // namespace kvtier::store
