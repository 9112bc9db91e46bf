// Conversions of plans and answers. Needs the GIL.
#include "bindings/plan_arguments.h"

#include <pybind11/stl.h>

#include <cstring>

#include "bindings/errors_binding.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

using transfer::TransferDirection;

void check(bool is_sound, const std::string& what) {
  if (!is_sound) throw_if_error(Status(StatusCode::kInvalidArgument, what));
}

py::bytes bytes_of(const Digest128& digest) {
  return py::bytes(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

IdArray array_of_indices(const std::vector<std::size_t>& indices) {
  const std::vector<std::int64_t> values(indices.begin(), indices.end());
  return IdArray(static_cast<py::ssize_t>(values.size()), values.data());
}

std::vector<std::size_t> indices_of(const IdArray& values, const char* name) {
  std::vector<std::size_t> indices;
  check(values.ndim() == 1, std::string(name) + ": expected int64[n]");
  for (py::ssize_t at = 0; at < values.size(); ++at) {
    check(values.data()[at] >= 0,
          std::string(name) + ": a position below 0: " + std::to_string(values.data()[at]));
    indices.push_back(static_cast<std::size_t>(values.data()[at]));
  }
  return indices;
}

AddressArray array_of_words(const std::vector<std::uint64_t>& words) {
  return AddressArray(static_cast<py::ssize_t>(words.size()), words.data());
}

std::vector<std::uint64_t> words_of(const AddressArray& array) {
  return {array.data(), array.data() + array.size()};
}

}  // namespace

py::dict dict_of(const paged::MovePlan& plan) {
  py::dict fields;
  fields["plan_id"] = plan.plan_id;
  fields["arena_id"] = bytes_of(plan.arena_id);
  fields["generation"] = plan.generation;
  fields["is_load"] = plan.direction == TransferDirection::kLoad;
  fields["num_ranks"] = plan.num_ranks;
  fields["namespace_id"] = bytes_of(plan.namespace_id);
  fields["part_bytes"] = py::tuple(py::cast(plan.part_bytes));
  fields["block_indices"] = array_of_indices(plan.block_indices);
  fields["slot_offsets"] = array_of_words(plan.slot_offsets);
  fields["keys"] = array_of_keys(plan.keys);
  fields["checksums"] = array_of_words(plan.checksums);
  return fields;
}

paged::MovePlan plan_of(const py::dict& fields) {
  paged::MovePlan plan;
  plan.plan_id = fields["plan_id"].cast<std::uint64_t>();
  plan.arena_id = digest_of(fields["arena_id"].cast<py::bytes>());
  plan.generation = fields["generation"].cast<std::uint64_t>();
  plan.direction =
      fields["is_load"].cast<bool>() ? TransferDirection::kLoad : TransferDirection::kSave;
  plan.num_ranks = fields["num_ranks"].cast<std::uint32_t>();
  plan.namespace_id = digest_of(fields["namespace_id"].cast<py::bytes>());
  plan.part_bytes = fields["part_bytes"].cast<std::vector<std::uint64_t>>();
  plan.block_indices = indices_of(fields["block_indices"].cast<IdArray>(), "block_indices");
  plan.slot_offsets = words_of(fields["slot_offsets"].cast<AddressArray>());
  plan.keys = keys_of(fields["keys"].cast<KeyArray>());
  plan.checksums = words_of(fields["checksums"].cast<AddressArray>());
  return plan;
}

py::tuple tuple_of(const paged::RankResult& result) {
  const bool is_corrupt = result.status.code() == StatusCode::kCorrupt;
  const char* status = result.status.is_ok() ? "done" : is_corrupt ? "corrupt" : "failed";
  return py::make_tuple(status, result.status.message(), array_of_words(result.checksums),
                        array_of_indices(result.undefined_indices));
}

paged::RankResult answer_of(const AnswerFields& fields, const AddressArray& checksums,
                            const IdArray& undefined_indices) {
  const auto& [plan_id, arena_id, rank, status, message, first_part, num_parts] = fields;
  paged::RankResult result;
  result.plan_id = plan_id;
  result.arena_id = digest_of(arena_id);
  result.rank = rank;
  result.parts = {first_part, num_parts};
  result.checksums = words_of(checksums);
  result.undefined_indices = indices_of(undefined_indices, "undefined_indices");
  check(status == "done" || status == "corrupt" || status == "failed",
        "status: expected done, corrupt or failed, got " + status);
  if (status == "corrupt") result.status = Status(StatusCode::kCorrupt, message);
  if (status == "failed") {
    result.status = Status(StatusCode::kIoError, "rank " + std::to_string(rank) + ": " + message);
  }
  return result;
}

std::vector<PlaceFields> fields_of(const std::vector<ArenaPlace>& places) {
  std::vector<PlaceFields> fields;
  for (const ArenaPlace& place : places) {
    fields.emplace_back(bytes_of(place.id), place.num_bytes, place.process_id, place.fd,
                        bytes_of(place.socket_number));
  }
  return fields;
}

std::vector<ArenaPlace> arena_places_of(const std::vector<PlaceFields>& places) {
  std::vector<ArenaPlace> parsed;
  for (const auto& [arena_id, num_bytes, process_id, fd, socket_number] : places) {
    parsed.push_back({digest_of(arena_id), num_bytes, process_id, fd, digest_of(socket_number)});
  }
  return parsed;
}

}  // namespace kvtier::bindings
