// Plans, their answers and the places of arenas as Python knows them. Needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/paged_arguments.h"
#include "memory/arena_handover.h"
#include "paged/move_plan.h"

namespace kvtier::bindings {

/// (plan_id, arena_id, rank, status, message, first_part, num_parts).
using AnswerFields = std::tuple<std::uint64_t, pybind11::bytes, std::uint32_t, std::string,
                                std::string, std::size_t, std::size_t>;
/// (arena_id, num_bytes, process_id, fd, socket_number).
using PlaceFields = std::tuple<pybind11::bytes, std::uint64_t, std::int64_t, int, pybind11::bytes>;

pybind11::dict dict_of(const paged::MovePlan& plan);
/// Throws UsageError for arrays of another shape.
paged::MovePlan plan_of(const pybind11::dict& fields);

pybind11::tuple tuple_of(const paged::RankResult& result);
/// status: "done", "corrupt" or "failed"; checksums: uint64[...]; undefined_indices: int64[...].
/// Throws UsageError (another word, a negative index).
paged::RankResult answer_of(const AnswerFields& fields, const AddressArray& checksums,
                            const IdArray& undefined_indices);

std::vector<PlaceFields> fields_of(const std::vector<ArenaPlace>& places);
std::vector<ArenaPlace> arena_places_of(const std::vector<PlaceFields>& places);

}  // namespace kvtier::bindings
