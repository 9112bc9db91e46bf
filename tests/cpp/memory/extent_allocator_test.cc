// Tests of the extent allocator against a model that marks every unit. Single-threaded.
#include "memory/extent_allocator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "base/check.h"
#include "format/random_seed.h"

namespace kvtier {
namespace {

// One flag a unit: the plainest thing that can say what is free.
class UnitModel {
 public:
  UnitModel(std::size_t num_units, std::uint64_t unit_bytes)
      : is_used_(num_units), unit_bytes_(unit_bytes) {}

  std::size_t units_of(std::uint64_t length_bytes) const {
    return static_cast<std::size_t>((length_bytes + unit_bytes_ - 1) / unit_bytes_);
  }

  std::optional<std::uint64_t> first_fit(std::uint64_t length_bytes) const {
    const std::size_t need_units = units_of(length_bytes);
    std::size_t run_units = 0;
    for (std::size_t unit = 0; unit < is_used_.size(); ++unit) {
      run_units = is_used_[unit] ? 0 : run_units + 1;
      if (run_units == need_units) return (unit + 1 - need_units) * unit_bytes_;
    }
    return std::nullopt;
  }

  void mark(std::uint64_t offset_bytes, std::uint64_t length_bytes, bool is_used) {
    const auto begin = static_cast<std::size_t>(offset_bytes / unit_bytes_);
    for (std::size_t unit = begin; unit < begin + units_of(length_bytes); ++unit) {
      REQUIRE(is_used_[unit] != is_used);
      is_used_[unit] = is_used;
    }
  }

  std::uint64_t free_bytes() const {
    return static_cast<std::uint64_t>(std::count(is_used_.begin(), is_used_.end(), false)) *
           unit_bytes_;
  }

  std::uint64_t largest_free_bytes() const {
    std::uint64_t run_units = 0;
    std::uint64_t largest_units = 0;
    for (const bool is_used : is_used_) {
      run_units = is_used ? 0 : run_units + 1;
      largest_units = std::max(largest_units, run_units);
    }
    return largest_units * unit_bytes_;
  }

  std::uint64_t run_bytes_if_freed(std::uint64_t offset_bytes, std::uint64_t length_bytes) const {
    auto begin = static_cast<std::size_t>(offset_bytes / unit_bytes_);
    std::size_t end = begin + units_of(length_bytes);
    while (begin > 0 && !is_used_[begin - 1]) --begin;
    while (end < is_used_.size() && !is_used_[end]) ++end;
    return (end - begin) * unit_bytes_;
  }

 private:
  std::vector<bool> is_used_;
  std::uint64_t unit_bytes_;
};

void run_against_model(std::mt19937_64& random, std::size_t num_units, std::uint64_t unit_bytes) {
  ExtentAllocator allocator(num_units * unit_bytes + unit_bytes - 1, unit_bytes);
  UnitModel model(num_units, unit_bytes);
  std::map<std::uint64_t, std::uint64_t> held;
  REQUIRE(allocator.capacity_bytes() == num_units * unit_bytes);
  for (int step = 0; step < 2000; ++step) {
    const bool is_allocating = held.empty() || random() % 100 < (step / 500 % 2 == 0 ? 65u : 35u);
    if (is_allocating) {
      const std::uint64_t length_bytes = 1 + random() % (unit_bytes * (1 + random() % 9));
      const auto offset_bytes = allocator.allocate(length_bytes);
      REQUIRE(offset_bytes == model.first_fit(length_bytes));
      if (!offset_bytes) continue;
      model.mark(*offset_bytes, length_bytes, true);
      held[*offset_bytes] = length_bytes;
    } else {
      const auto victim =
          std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      const auto [offset_bytes, length_bytes] = *victim;
      REQUIRE(allocator.run_bytes_if_freed(offset_bytes, length_bytes) ==
              model.run_bytes_if_freed(offset_bytes, length_bytes));
      allocator.free(offset_bytes, length_bytes);
      model.mark(offset_bytes, length_bytes, false);
      held.erase(victim);
    }
    REQUIRE(allocator.free_bytes() == model.free_bytes());
    REQUIRE(allocator.largest_free_bytes() == model.largest_free_bytes());
  }
  for (const auto& [offset_bytes, length_bytes] : held) allocator.free(offset_bytes, length_bytes);
  CHECK(allocator.free_bytes() == allocator.capacity_bytes());
  CHECK(allocator.largest_free_bytes() == allocator.capacity_bytes());
}

TEST_CASE("free and used extents never overlap and always add up") {
  std::mt19937_64 random(announce_random_seed());
  for (const std::uint64_t unit_bytes : {1u, 64u, 4096u}) {
    for (const std::size_t num_units : {1u, 7u, 64u, 300u}) {
      run_against_model(random, num_units, unit_bytes);
    }
  }
}

TEST_CASE("an allocator without room for one unit gives nothing") {
  ExtentAllocator empty(0, 4096);
  CHECK(!empty.allocate(1).has_value());
  CHECK(empty.largest_free_bytes() == 0);
  ExtentAllocator less_than_unit(4095, 4096);
  CHECK(less_than_unit.capacity_bytes() == 0);
  CHECK(!less_than_unit.allocate(1).has_value());
}

TEST_CASE("a request beyond any capacity gives nothing and changes nothing") {
  ExtentAllocator allocator(8192, 4096);
  CHECK(!allocator.allocate(8193).has_value());
  CHECK(!allocator.allocate(UINT64_MAX).has_value());
  CHECK(!allocator.allocate(UINT64_MAX - 4094).has_value());
  CHECK(allocator.free_bytes() == 8192);
  CHECK(allocator.allocate(8192) == std::uint64_t{0});
}

TEST_CASE("a unit that is no power of two is refused") {
  CHECK_THROWS_AS(ExtentAllocator(8192, 0), InternalError);
  CHECK_THROWS_AS(ExtentAllocator(8192, 3000), InternalError);
}

TEST_CASE("giving back what was not handed out is refused") {
  ExtentAllocator allocator(16384, 4096);
  REQUIRE(allocator.allocate(8192) == std::uint64_t{0});
  REQUIRE(allocator.allocate(4096) == std::uint64_t{8192});
  CHECK_THROWS_AS(allocator.free(4096, 4096), InternalError);
  CHECK_THROWS_AS(allocator.free(0, 4096), InternalError);
  CHECK_THROWS_AS(allocator.free(0, 12288), InternalError);
  CHECK_THROWS_AS(allocator.free(0, 0), InternalError);
  CHECK_THROWS_AS(allocator.free(12288, 4096), InternalError);
  CHECK_THROWS_AS(allocator.free(0, UINT64_MAX), InternalError);
  CHECK(allocator.free_bytes() == 4096);
  allocator.free(0, 8192);
  CHECK_THROWS_AS(allocator.free(0, 8192), InternalError);
  CHECK(allocator.free_bytes() == 12288);
  CHECK_THROWS_AS((void)allocator.allocate(0), InternalError);
}

}  // namespace
}  // namespace kvtier
