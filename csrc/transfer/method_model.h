// MethodModel: what each method is expected to cost, measured at the start and corrected by every
// transfer since. Not thread-safe: its owner locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transfer/transfer_types.h"

namespace kvtier::transfer {

/// Fragments are told apart by powers of two, 1 KiB and below to 1 MiB and above.
inline constexpr std::size_t kNumFragmentClasses = 11;
std::size_t fragment_class_of(std::uint64_t fragment_bytes);
std::uint64_t fragment_bytes_of(std::size_t fragment_class);

struct MethodCost {
  double latency_ns = 0;
  double ns_per_kib = 0;
  bool operator==(const MethodCost&) const = default;
};

/// Which methods can be used at all.
struct MethodSet {
  bool is_allowed[kNumMethods] = {true, true, true};
};

class MethodModel {
 public:
  /// Begins with general figures: a link of 25 GB/s and the copy engine's cost a fragment.
  MethodModel();

  void set_cost(TransferDirection direction, TransferMethod method, std::size_t fragment_class,
                const MethodCost& cost);
  const MethodCost& cost(TransferDirection direction, TransferMethod method,
                         std::size_t fragment_class) const;

  /// The fastest of the allowed methods by what is known. Requires: one is allowed.
  TransferMethod choose(TransferDirection direction, std::uint64_t fragment_bytes,
                        std::uint64_t num_bytes, const MethodSet& allowed) const;
  double expected_ns(TransferDirection direction, TransferMethod method,
                     std::uint64_t fragment_bytes, std::uint64_t num_bytes) const;
  /// The same without corrections: a job that had others before it seems longer than it is.
  double uncorrected_ns(TransferDirection direction, TransferMethod method,
                        std::uint64_t fragment_bytes, std::uint64_t num_bytes) const;
  /// Takes in what a transfer took.
  void correct(TransferDirection direction, TransferMethod method, std::uint64_t fragment_bytes,
               std::uint64_t num_bytes, TimeNs measured_ns);

 private:
  struct Entry {
    MethodCost cost;
    double correction[2] = {1, 1};  // Short transfers, long ones.
  };
  using MethodEntries = std::array<Entry, kNumFragmentClasses>;
  const Entry& entry(TransferDirection direction, TransferMethod method,
                     std::size_t fragment_class) const;

  std::array<std::array<MethodEntries, kNumMethods>, kNumDirections> entries_;
};

}  // namespace kvtier::transfer
