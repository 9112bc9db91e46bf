// Reports of wrong bytes, on the simulated world: failed and partial gets, ranges, reused slots,
// namespaces.
#include <map>

#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::byte kCanary{0x5c};

/// Flips one byte of the stored payload of a block, wherever it lies on disk.
void damage_on_disk(StoreWorld& world, std::uint64_t number, std::size_t block_bytes) {
  const auto payload = payload_of(number, block_bytes);
  std::size_t num_found = 0;
  for (auto& [name, bytes] : world.disk->files()) {
    auto found = std::search(bytes.begin(), bytes.end(), payload.begin(), payload.begin() + 512);
    if (found == bytes.end()) continue;
    *(found + 100) ^= std::byte{1};
    ++num_found;
  }
  REQUIRE(num_found == 1);
}

}  // namespace

TEST_CASE(
    "A5: a get with a corrupt block says which came and leaves the rest of the target alone") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(4096), 0, 8, 4096);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(4096);
  damage_on_disk(world, 5, 4096);
  const auto outcomes = world.get(space, 0, 8, 4096);  // Checks the canary of what did not come.
  for (std::size_t i = 0; i < 5; ++i) CHECK(outcomes[i] == Outcome::kDone);
  CHECK(outcomes[5] == Outcome::kCorrupt);
  CHECK(outcomes[6] == Outcome::kMiss);
  CHECK(outcomes[7] == Outcome::kMiss);
  CHECK(world.lookup(space, 0, 8) == 5);
  CHECK(count_done(world.get(space, 5, 3, 4096, false)) == 0);
  CHECK(world.store->stats().disk.corrupt == 1);
  CHECK(world.store->stats().disk.torn == 0);
  world.check_consistency();
}

TEST_CASE("A5: a get of missing keys changes nothing") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(1000);
  world.put(space, 0, 3, 1000);
  CHECK(count_done(world.get(space, 100, 5, 1000)) == 0);
  CHECK(count_done(world.get(space, 0, 3, 1000)) == 3);
}

TEST_CASE("A7: the parts of a block must add up to it") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  NamespaceOptions options;
  options.id = key_of(1);
  options.block_bytes = 528;
  options.part_bytes = {512};
  CHECK(world.store->add_namespace(options).status().code() == StatusCode::kConfig);
  options.part_bytes = {512, 16};
  CHECK(world.store->add_namespace(options).is_ok());
  options.id = key_of(2);
  options.part_bytes = std::vector<std::uint64_t>(4097, 0);
  options.part_bytes.back() = 528;
  CHECK(world.store->add_namespace(options).status().code() == StatusCode::kConfig);
  options.block_bytes = 0;
  options.part_bytes = {};
  CHECK(world.store->add_namespace(options).status().code() == StatusCode::kConfig);
}

TEST_CASE("A9: a get of some blocks in the middle writes just their places") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::size_t block_bytes = 5000;
  const auto space = world.add_namespace(block_bytes);
  world.put(space, 0, 8, block_bytes);
  std::vector<std::byte> target(8 * block_bytes, kCanary);
  const auto keys = keys_of(2, 3);
  std::vector<std::byte*> addresses;
  for (std::size_t i = 0; i < 3; ++i) addresses.push_back(target.data() + (2 + i) * block_bytes);
  GetRequest request;
  request.namespace_index = space;
  request.keys = keys;
  request.targets = addresses;
  request.timeout_ns = kNsPerS;
  CHECK(count_done(world.store->get(request).value()) == 3);
  for (std::size_t at = 0; at < target.size(); ++at) {
    const std::size_t block = at / block_bytes;
    const bool is_asked = block >= 2 && block < 5;
    if (!is_asked) REQUIRE(target[at] == kCanary);
  }
  for (std::size_t i = 2; i < 5; ++i) {
    const auto expected = payload_of(i, block_bytes);
    CHECK(std::equal(expected.begin(), expected.end(),
                     target.begin() + static_cast<std::ptrdiff_t>(i * block_bytes)));
  }
}

TEST_CASE("A10: two hundred thousand random calls on a small store never mix blocks up") {
  StoreWorld world;
  // 64 slots in host, about a hundred on disk, some thousand keys.
  world.options.host_bytes = 1 << 20;
  world.options.disk_bytes = 2 << 20;
  REQUIRE(world.open().is_ok());
  const std::size_t block_bytes = 16000;
  const auto space = world.add_namespace(block_bytes);
  Random random(10);
  std::map<std::uint64_t, std::uint64_t> generations;  // Of keys that were deleted and put anew.
  std::vector<std::byte> target(block_bytes);
  std::uint64_t num_hits = 0;
  for (int round = 0; round < 200'000; ++round) {
    const std::uint64_t number = random.below(400);
    const std::vector<BlockKey> keys = {key_of(number)};
    const std::uint64_t choice = random.below(100);
    if (choice < 30) {
      const auto payload = payload_of(number, block_bytes, generations[number]);
      const std::vector<const std::byte*> sources = {payload.data()};
      PutRequest request;
      request.namespace_index = space;
      request.keys = keys;
      request.sources = sources;
      request.timeout_ns = kNsPerS;
      REQUIRE(world.store->put(request).is_ok());
    } else if (choice < 98) {
      const std::vector<std::byte*> targets = {target.data()};
      GetRequest request;
      request.namespace_index = space;
      request.keys = keys;
      request.targets = targets;
      request.timeout_ns = kNsPerS;
      auto outcomes = world.store->get(request);
      REQUIRE(outcomes.is_ok());
      if (outcomes.value()[0] != Outcome::kDone) continue;
      ++num_hits;
      // Words at the ends and one in the middle: each names key, generation and place.
      const auto expected = payload_of(number, block_bytes, generations[number]);
      const bool is_right = std::memcmp(target.data(), expected.data(), block_bytes) == 0;
      REQUIRE_MESSAGE(is_right, "round " << round << " number " << number);
    } else if (choice < 99) {
      if (!world.store->erase(space, keys).is_ok()) continue;
      if (world.lookup(space, number, 1) == 0) ++generations[number];
    } else {
      world.clock->advance_ns(kNsPerMs);
      run_for_ns(*world.executor, kNsPerMs);
    }
  }
  CHECK(num_hits > 20'000);
  CHECK(world.store->stats().host.evicted > 1000);
  world.check_consistency();
}

TEST_CASE("B3: equal keys in different namespaces are different blocks, also after a restart") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto one = world.add_namespace(4096, 1);
  const auto other = world.add_namespace(4096, 2);
  REQUIRE(one != other);
  world.put(one, 0, 5, 4096);
  CHECK(world.lookup(one, 0, 5) == 5);
  CHECK(world.lookup(other, 0, 5) == 0);
  world.flush();
  REQUIRE(world.restart().is_ok());
  // In the other order, and one that is new.
  const auto third = world.add_namespace(4096, 3);
  const auto other_again = world.add_namespace(4096, 2);
  CHECK(world.lookup(third, 0, 5) == 0);
  CHECK(world.lookup(other_again, 0, 5) == 0);
  CHECK(count_done(world.get(other_again, 0, 5, 4096)) == 0);
  const auto one_again = world.add_namespace(4096, 1);
  CHECK(count_done(world.get(one_again, 0, 5, 4096)) == 5);
}

TEST_CASE("E4: a block of any size comes back from both tiers") {
  for (const std::uint64_t block_bytes : {1ull, 511ull, 512ull, 513ull, 4095ull, 4096ull, 4097ull,
                                          100'001ull, 1'089'536ull, 3'098'112ull}) {  // E4
    CAPTURE(block_bytes);
    StoreWorld world;
    world.options.host_bytes = 16 << 20;
    world.options.staging_bytes = 8 << 20;
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(block_bytes);
    const std::size_t num_blocks = block_bytes > 1'000'000 ? 3 : 20;
    CHECK(count_done(world.put(space, 0, num_blocks, block_bytes)) == num_blocks);
    CHECK(count_done(world.get(space, 0, num_blocks, block_bytes)) == num_blocks);
    world.flush();
    REQUIRE(world.crash_and_open(false).is_ok());
    const auto again = world.add_namespace(block_bytes);
    CHECK(count_done(world.get(again, 0, num_blocks, block_bytes)) == num_blocks);
    CHECK(world.store->stats().disk.hits == num_blocks);
  }
}

TEST_CASE("the checker of delivered bytes notices damage that slips past the checksum") {
  // A canary: bytes in host memory are not checked by the store, so the test's own check must be.
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(1000);
  const auto lie = payload_of(8, 1000);
  const std::vector<BlockKey> keys = {key_of(7)};
  const std::vector<const std::byte*> sources = {lie.data()};
  PutRequest put;
  put.namespace_index = space;
  put.keys = keys;
  put.sources = sources;
  put.timeout_ns = kNsPerS;
  CHECK(count_done(world.store->put(put).value()) == 1);
  std::vector<std::byte> target(1000, kCanary);
  const std::vector<std::byte*> targets = {target.data()};
  GetRequest get;
  get.namespace_index = space;
  get.keys = keys;
  get.targets = targets;
  get.timeout_ns = kNsPerS;
  CHECK(count_done(world.store->get(get).value()) == 1);
  CHECK(target != payload_of(7, 1000));
}
