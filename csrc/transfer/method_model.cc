// Expected costs of methods. Thread safety: see the header.
#include "transfer/method_model.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvtier::transfer {
namespace {

constexpr unsigned kFirstClassBits = 10;
// Shorter transfers are governed by latency, longer ones by the rate; they err apart.
constexpr std::uint64_t kShortBytesMax = 2u << 20;
// How much one transfer counts against all before it, and how far the sum of them may go.
constexpr double kWeight = 0.2;
// How far from what was expected a transfer is believed. A single one can be late by any amount,
// for reasons that lie with the host.
constexpr double kSurpriseMax = 1.5;
// How fast the other methods' corrections are forgotten: what was slow once is tried again.
constexpr double kForgetting = 0.01;
constexpr double kCorrectionMin = 0.25;
constexpr double kCorrectionMax = 4.0;

constexpr double kLinkNsPerKib = 1024 / 25.0;
constexpr double kCopyNs = 2000;  // One copy of the copy engine, before its bytes.
constexpr double kStagedNs = 30000;
constexpr double kZeroCopyNs = 15000;

bool is_long(std::uint64_t num_bytes) { return num_bytes > kShortBytesMax; }

MethodCost general_cost(TransferMethod method, std::size_t fragment_class) {
  if (method == TransferMethod::kStaged) return {kStagedNs, kLinkNsPerKib};
  if (method == TransferMethod::kZeroCopy) return {kZeroCopyNs, kLinkNsPerKib * 1.06};
  const double fragments_per_kib = 1024.0 / static_cast<double>(fragment_bytes_of(fragment_class));
  return {kCopyNs, kLinkNsPerKib + kCopyNs * fragments_per_kib};
}

}  // namespace

std::size_t fragment_class_of(std::uint64_t fragment_bytes) {
  const unsigned bits = static_cast<unsigned>(std::bit_width(fragment_bytes | 1)) - 1;
  return std::min<std::size_t>(bits < kFirstClassBits ? 0 : bits - kFirstClassBits,
                               kNumFragmentClasses - 1);
}

std::uint64_t fragment_bytes_of(std::size_t fragment_class) {
  return std::uint64_t{1} << (fragment_class + kFirstClassBits);
}

MethodModel::MethodModel() {
  for (auto& methods : entries_) {
    for (std::size_t method = 0; method < kNumMethods; ++method) {
      for (std::size_t index = 0; index < kNumFragmentClasses; ++index) {
        methods[method][index].cost = general_cost(static_cast<TransferMethod>(method), index);
      }
    }
  }
}

const MethodModel::Entry& MethodModel::entry(TransferDirection direction, TransferMethod method,
                                             std::size_t fragment_class) const {
  KVTIER_CHECK(static_cast<std::size_t>(method) < kNumMethods);
  KVTIER_CHECK(fragment_class < kNumFragmentClasses);
  return entries_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(method)]
                 [fragment_class];
}

void MethodModel::set_cost(TransferDirection direction, TransferMethod method,
                           std::size_t fragment_class, const MethodCost& cost) {
  (void)entry(direction, method, fragment_class);  // For its checks.
  entries_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(method)][fragment_class] =
      {cost, {1, 1}};
}

const MethodCost& MethodModel::cost(TransferDirection direction, TransferMethod method,
                                    std::size_t fragment_class) const {
  return entry(direction, method, fragment_class).cost;
}

double MethodModel::expected_ns(TransferDirection direction, TransferMethod method,
                                std::uint64_t fragment_bytes, std::uint64_t num_bytes) const {
  const Entry& known = entry(direction, method, fragment_class_of(fragment_bytes));
  return uncorrected_ns(direction, method, fragment_bytes, num_bytes) *
         known.correction[is_long(num_bytes) ? 1 : 0];
}

double MethodModel::uncorrected_ns(TransferDirection direction, TransferMethod method,
                                   std::uint64_t fragment_bytes, std::uint64_t num_bytes) const {
  const MethodCost& known = cost(direction, method, fragment_class_of(fragment_bytes));
  return known.latency_ns + known.ns_per_kib * static_cast<double>(num_bytes) / 1024;
}

TransferMethod MethodModel::choose(TransferDirection direction, std::uint64_t fragment_bytes,
                                   std::uint64_t num_bytes, const MethodSet& allowed) const {
  TransferMethod chosen = TransferMethod::kAuto;
  double least_ns = 0;
  for (std::size_t index = 0; index < kNumMethods; ++index) {
    if (!allowed.is_allowed[index]) continue;
    const auto method = static_cast<TransferMethod>(index);
    const double needed_ns = expected_ns(direction, method, fragment_bytes, num_bytes);
    if (chosen != TransferMethod::kAuto && needed_ns >= least_ns) continue;
    chosen = method;
    least_ns = needed_ns;
  }
  KVTIER_CHECK(chosen != TransferMethod::kAuto);
  return chosen;
}

void MethodModel::correct(TransferDirection direction, TransferMethod method,
                          std::uint64_t fragment_bytes, std::uint64_t num_bytes,
                          TimeNs measured_ns) {
  const double plain_ns = uncorrected_ns(direction, method, fragment_bytes, num_bytes);
  const std::size_t fragment_class = fragment_class_of(fragment_bytes);
  double& correction = entries_[static_cast<std::size_t>(direction)]
                               [static_cast<std::size_t>(method)][fragment_class]
                                   .correction[is_long(num_bytes) ? 1 : 0];
  if (measured_ns <= 0 || plain_ns <= 0) return;
  const double ratio = std::clamp(static_cast<double>(measured_ns) / plain_ns,
                                  correction / kSurpriseMax, correction * kSurpriseMax);
  correction =
      std::clamp(correction + kWeight * (ratio - correction), kCorrectionMin, kCorrectionMax);
  for (MethodEntries& entries : entries_[static_cast<std::size_t>(direction)]) {
    double& other = entries[fragment_class].correction[is_long(num_bytes) ? 1 : 0];
    if (&other != &correction) other += kForgetting * (1 - other);
  }
}

}  // namespace kvtier::transfer
