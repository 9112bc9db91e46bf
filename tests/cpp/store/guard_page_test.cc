// Puts from and gets into buffers of every misalignment that end exactly at a page nobody may
// touch.
#include <sys/mman.h>

#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

/// `length_bytes` of memory that end at a PROT_NONE page and begin after one.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t length_bytes, std::size_t end_gap_bytes) {
    const std::size_t inner_bytes = (length_bytes + end_gap_bytes + kPage - 1) / kPage * kPage;
    mapped_bytes_ = inner_bytes + 2 * kPage;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    base_ = static_cast<std::byte*>(mapped);
    REQUIRE(mprotect(base_ + kPage, inner_bytes, PROT_READ | PROT_WRITE) == 0);
    inner_ = {base_ + kPage, inner_bytes};
    std::fill(inner_.begin(), inner_.end(), kCanary);
    bytes_ = inner_.subspan(inner_bytes - length_bytes - end_gap_bytes, length_bytes);
  }
  ~GuardedBytes() { munmap(base_, mapped_bytes_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// Whether everything readable around the bytes is untouched.
  bool is_rest_untouched() const {
    for (const std::byte& byte : inner_) {
      const bool is_inside = &byte >= bytes_.data() && &byte < bytes_.data() + bytes_.size();
      if (!is_inside && byte != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::byte kCanary{0x3e};
  std::byte* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::span<std::byte> inner_;
  std::span<std::byte> bytes_;
};

std::size_t put_one(StoreWorld& world, std::uint32_t space, std::uint64_t number,
                    std::span<const std::byte> source) {
  const std::vector<BlockKey> keys = {key_of(number)};
  const std::vector<const std::byte*> sources = {source.data()};
  PutRequest request;
  request.namespace_index = space;
  request.keys = keys;
  request.sources = sources;
  request.timeout_ns = kNsPerS;
  auto outcomes = world.store->put(request);
  REQUIRE(outcomes.is_ok());
  return count_done(outcomes.value());
}

std::size_t get_one(StoreWorld& world, std::uint32_t space, std::uint64_t number,
                    std::span<std::byte> target) {
  const std::vector<BlockKey> keys = {key_of(number)};
  const std::vector<std::byte*> targets = {target.data()};
  GetRequest request;
  request.namespace_index = space;
  request.keys = keys;
  request.targets = targets;
  request.timeout_ns = kNsPerS;
  auto outcomes = world.store->get(request);
  REQUIRE(outcomes.is_ok());
  return count_done(outcomes.value());
}

/// Every misalignment once: the end lies 0 to 63 bytes before the guard page, so that the start
/// takes every residue; gap 0 ends exactly at it.
void check_size(StoreWorld& world, std::size_t block_bytes) {
  const std::uint32_t space = world.add_namespace(block_bytes);
  for (std::uint64_t gap = 0; gap < 64; ++gap) {
    CAPTURE(gap);
    const auto payload = payload_of(gap, block_bytes);
    GuardedBytes source(block_bytes, gap);
    std::copy(payload.begin(), payload.end(), source.bytes().begin());
    REQUIRE(mprotect(source.bytes().data() -
                         reinterpret_cast<std::uintptr_t>(source.bytes().data()) % 4096,
                     4096, PROT_READ) == 0);  // A put only reads.
    CHECK(put_one(world, space, gap, source.bytes()) == 1);
    GuardedBytes target(block_bytes, gap);
    REQUIRE(get_one(world, space, gap, target.bytes()) == 1);
    CHECK(std::equal(payload.begin(), payload.end(), target.bytes().begin()));
    CHECK(target.is_rest_untouched());
  }
}

}  // namespace

TEST_CASE("misaligned buffers between guard pages work with both tiers") {
  for (const std::size_t block_bytes : {1, 511, 512, 513, 4095, 4096, 4097, 100'001}) {
    CAPTURE(block_bytes);
    for (const bool has_host : {true, false}) {
      CAPTURE(has_host);
      StoreWorld world;
      world.options.host_bytes = has_host ? 8 << 20 : 0;
      REQUIRE(world.open().is_ok());
      check_size(world, block_bytes);
    }
  }
}

TEST_CASE("a guard page notices a byte too many") {
  GuardedBytes guarded(100, 10);
  CHECK(guarded.is_rest_untouched());
  *(guarded.bytes().data() + 100) = std::byte{0};
  CHECK_FALSE(guarded.is_rest_untouched());
}
