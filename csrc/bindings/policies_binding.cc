// Binds the simulation of eviction and admission. Calls release the GIL.
#include <map>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/core_store.h"
#include "bindings/errors_binding.h"
#include "store/block_entry.h"
#include "store/policy_simulation.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

store::SimulatedPolicy policy_of(const std::string& word) {
  static const std::map<std::string, store::SimulatedPolicy> kPolicies = {
      {"lru", store::SimulatedPolicy::kLru},
      {"s3fifo", store::SimulatedPolicy::kS3Fifo},
      {"second_use", store::SimulatedPolicy::kSecondUse},
      {"adaptive", store::SimulatedPolicy::kAdaptive}};
  const auto found = kPolicies.find(word);
  if (found == kPolicies.end()) {
    throw_if_error(Status(StatusCode::kInvalidArgument, "policy: unknown word: " + word),
                   CallKind::kUse);
  }
  return found->second;
}

store::SimulatedTrace trace_of(const AddressArray& block_ids, const AddressArray& request_ends) {
  const store::SimulatedTrace trace{
      {block_ids.data(), static_cast<std::size_t>(block_ids.size())},
      {request_ends.data(), static_cast<std::size_t>(request_ends.size())}};
  std::uint64_t begin = 0;
  for (const std::uint64_t end : trace.request_ends) {
    if (end < begin || end > trace.block_ids.size()) {
      throw_if_error(
          Status(StatusCode::kInvalidArgument,
                 "request_ends must rise and stay within block_ids: end=" + std::to_string(end)),
          CallKind::kUse);
    }
    begin = end;
  }
  return trace;
}

void check_capacity(std::uint64_t capacity_blocks) {
  if (capacity_blocks >= 1 && capacity_blocks < store::kNoEntry - 1) return;
  throw_if_error(Status(StatusCode::kInvalidArgument,
                        "capacity_blocks is out of range: " + std::to_string(capacity_blocks)),
                 CallKind::kUse);
}

std::pair<std::uint64_t, std::uint64_t> simulate(const AddressArray& block_ids,
                                                 const AddressArray& request_ends,
                                                 const std::string& policy,
                                                 std::uint64_t capacity_blocks) {
  const store::SimulatedTrace trace = trace_of(block_ids, request_ends);
  const store::SimulatedPolicy simulated = policy_of(policy);
  check_capacity(capacity_blocks);
  const py::gil_scoped_release release;
  const auto result = store::simulate_policy(trace, simulated, capacity_blocks);
  return {result.num_hits, result.num_writes};
}

std::uint64_t count_optimal(const AddressArray& block_ids, const AddressArray& request_ends,
                            std::uint64_t capacity_blocks) {
  const store::SimulatedTrace trace = trace_of(block_ids, request_ends);
  check_capacity(capacity_blocks);
  const py::gil_scoped_release release;
  return store::count_optimal_hits(trace, capacity_blocks);
}

}  // namespace

void bind_policies(py::module_& module) {
  module.def("simulate_policy", &simulate, py::arg("block_ids").noconvert(),
             py::arg("request_ends").noconvert(), py::arg("policy"), py::arg("capacity_blocks"));
  module.def("count_optimal_hits", &count_optimal, py::arg("block_ids").noconvert(),
             py::arg("request_ends").noconvert(), py::arg("capacity_blocks"));
}

}  // namespace kvtier::bindings
