// The calibration as text: a line of identity, a line for each cost, a checksum. Thread-safe.
#include <cinttypes>
#include <cstdio>
#include <sstream>

#include "transfer/calibration.h"

namespace kvtier::transfer {
namespace {

constexpr char kVersion[] = "kvtier calibration 1";
constexpr std::uint64_t kChecksumPurpose = 0x6b7663616c696231;

std::string header_of(const std::string& identity, const TransferOptions& options) {
  return std::string(kVersion) + "\ndevice " + identity + "\nbudget " +
         std::to_string(options.max_ctas) + " " + std::to_string(options.chunk_bytes) + "\n";
}

std::string seal_of(const std::string& text) {
  const std::uint64_t checksum =
      checksum_metadata(std::as_bytes(std::span(text)), kChecksumPurpose);
  char line[40];
  std::snprintf(line, sizeof line, "checksum %016" PRIx64 "\n", checksum);
  return line;
}

template <typename Call>
void for_each_entry(const Call& call) {
  for (std::size_t direction = 0; direction < kNumDirections; ++direction) {
    for (std::size_t method = 0; method < kNumMethods; ++method) {
      for (std::size_t index = 0; index < kNumFragmentClasses; ++index) {
        call(static_cast<TransferDirection>(direction), static_cast<TransferMethod>(method), index);
      }
    }
  }
}

}  // namespace

std::string write_calibration(const MethodModel& model, const std::string& identity,
                              const TransferOptions& options) {
  std::string text = header_of(identity, options);
  for_each_entry([&](TransferDirection direction, TransferMethod method, std::size_t index) {
    const MethodCost& cost = model.cost(direction, method, index);
    char line[80];
    std::snprintf(line, sizeof line, "%.17g %.17g\n", cost.latency_ns, cost.ns_per_kib);
    text += line;
  });
  return text + seal_of(text);
}

std::optional<MethodModel> read_calibration(const std::string& text, const std::string& identity,
                                            const TransferOptions& options) {
  const std::string header = header_of(identity, options);
  const std::size_t seal_place = text.rfind("checksum ");
  if (!text.starts_with(header) || seal_place == std::string::npos) return std::nullopt;
  if (text.substr(seal_place) != seal_of(text.substr(0, seal_place))) return std::nullopt;
  std::istringstream numbers(text.substr(header.size(), seal_place - header.size()));
  MethodModel model;
  for_each_entry([&](TransferDirection direction, TransferMethod method, std::size_t index) {
    MethodCost cost;
    numbers >> cost.latency_ns >> cost.ns_per_kib;
    if (numbers) model.set_cost(direction, method, index, cost);
  });
  if (!numbers) return std::nullopt;
  return model;
}

}  // namespace kvtier::transfer
