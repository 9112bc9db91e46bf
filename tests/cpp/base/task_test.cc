// Tasks: lazily started, results and exceptions pass through, and long loops take no stack.
#include "base/task.h"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace kvtier {
namespace {

/// Suspends until the test resumes it.
struct Gate {
  std::coroutine_handle<> waiting;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> point) { waiting = point; }
  void await_resume() const {}
};

Task<int> double_of(int value) { co_return 2 * value; }

Task<int> pass(Gate& gate, int value) {
  co_await gate;
  co_return value;
}

Task<int> sum(Gate& gate, std::vector<int>& steps) {
  steps.push_back(1);
  const int first = co_await double_of(10);
  steps.push_back(2);
  const int second = co_await pass(gate, 3);
  steps.push_back(3);
  co_return first + second;
}

TEST_CASE("a task starts when told, waits with its awaited task, and gives the result") {
  Gate gate;
  std::vector<int> steps;
  Task<int> task = sum(gate, steps);
  CHECK(steps.empty());
  task.start();
  CHECK(steps == std::vector<int>{1, 2});
  CHECK_FALSE(task.is_done());
  gate.waiting.resume();
  CHECK(task.is_done());
  CHECK(steps == std::vector<int>{1, 2, 3});
  CHECK(task.take() == 23);
}

Task<int> fail_after(Gate& gate) {
  co_await gate;
  throw std::runtime_error("planted");
}

Task<int> caught(Gate& gate) {
  int result = 0;
  try {
    result = co_await fail_after(gate);
  } catch (const std::runtime_error&) {
    result = -1;
  }
  co_return result;
}

TEST_CASE("an exception reaches who awaits, and at the top who takes the result") {
  Gate gate;
  Task<int> task = caught(gate);
  task.start();
  gate.waiting.resume();
  REQUIRE(task.is_done());
  CHECK(task.take() == -1);
  Task<int> top = fail_after(gate);
  top.start();
  gate.waiting.resume();
  REQUIRE(top.is_done());
  CHECK_THROWS_AS(top.take(), std::runtime_error);
}

Task<long> count_up(int num_rounds) {
  long total = 0;
  for (int round = 0; round < num_rounds; ++round) {
    const int value = co_await double_of(round);
    total += value;
  }
  co_return total;
}

TEST_CASE("a million awaits that end at once take no stack") {
  Task<long> task = count_up(1'000'000);
  task.start();
  REQUIRE(task.is_done());
  CHECK(task.take() == 999'999'000'000);
}

Task<int> hold(std::shared_ptr<int> held, Gate& gate) {
  co_await gate;
  co_return *held;
}

TEST_CASE("a task that is dropped before its end lets go of what it holds") {
  const auto held = std::make_shared<int>(1);
  Gate gate;
  {
    Task<int> unstarted = hold(held, gate);
    Task<int> suspended = hold(held, gate);
    suspended.start();
    CHECK(held.use_count() == 3);
  }
  CHECK(held.use_count() == 1);
}

}  // namespace
}  // namespace kvtier
