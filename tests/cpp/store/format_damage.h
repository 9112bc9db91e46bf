// A store of some forty blocks of several shapes on the simulated disk, and what must hold of
// whatever somebody did to its files. One thread.
#pragma once

#include <functional>
#include <map>

#include "store_world.h"

namespace kvtier::testing {

using DiskFiles = std::map<std::string, std::vector<std::byte>>;

class DamagedStore {
 public:
  struct Shape {
    std::uint64_t block_bytes;
    std::size_t num_blocks;
    std::vector<std::uint64_t> part_bytes;
  };

  explicit DamagedStore(std::uint64_t seed = 1) : world_(seed) {
    world_.options.host_bytes = 0;
    world_.options.disk_bytes = 8 << 20;
    world_.options.staging_bytes = 1 << 20;
    fill();
  }

  /// The files as the store left them.
  const DiskFiles& pristine() const { return pristine_; }
  StoreWorld& world() { return world_; }
  std::size_t num_blocks() const {
    std::size_t num_blocks = 0;
    for (const Shape& shape : shapes_) num_blocks += shape.num_blocks;
    return num_blocks;
  }

  /// Puts the files back, lets `damage` change them, opens and gets everything: never a wrong byte,
  /// never more than the cap, open succeeds. Returns how many blocks were delivered.
  std::size_t deliver_after(const std::function<void(DiskFiles&)>& damage) {
    world_.disk->crash(true);
    world_.store.reset();
    DiskFiles& files = world_.disk->files();
    // New names and old ones: what was there before must not shine through.
    world_.disk->files().clear();
    (void)world_.disk->allocated_bytes();
    files = pristine_;
    damage(files);
    (void)world_.disk->allocated_bytes();
    const Status opened = world_.open();
    REQUIRE_MESSAGE(opened.is_ok(), opened.to_string());
    CHECK(world_.disk->allocated_bytes() <= world_.options.disk_bytes);
    std::size_t num_done = 0;
    for (std::size_t s = 0; s < shapes_.size(); ++s) num_done += get_all(s);
    world_.check_consistency();
    return num_done;
  }

  /// Puts everything once more and gets it: the store still works.
  void use() {
    for (std::size_t s = 0; s < shapes_.size(); ++s) {
      const Shape& shape = shapes_[s];
      const std::uint32_t space = world_.add_namespace(shape.block_bytes, s, shape.part_bytes);
      const auto outcomes = world_.put(space, first(s), shape.num_blocks, shape.block_bytes);
      CHECK(count_done(outcomes) == shape.num_blocks);
    }
    world_.flush();
    CHECK(world_.disk->allocated_bytes() <= world_.options.disk_bytes);
    std::size_t num_done = 0;
    for (std::size_t s = 0; s < shapes_.size(); ++s) num_done += get_all(s);
    CHECK(num_done == num_blocks());
  }

 private:
  static std::uint64_t first(std::size_t shape) { return 1000 * shape; }

  void fill() {
    REQUIRE(world_.open().is_ok());
    use();
    REQUIRE(world_.store->close(60 * kNsPerS).is_ok());
    world_.store.reset();
    pristine_ = world_.disk->files();
  }

  /// The helper of the world checks each byte.
  std::size_t get_all(std::size_t s) {
    const Shape& shape = shapes_[s];
    const std::uint32_t space = world_.add_namespace(shape.block_bytes, s, shape.part_bytes);
    return count_done(world_.get(space, first(s), shape.num_blocks, shape.block_bytes, false));
  }

  StoreWorld world_;
  std::vector<Shape> shapes_ = {{1000, 12, {}},
                                {4096, 12, {}},
                                {20000, 10, {5000, 0, 15000}},
                                {70001, 6, {}},
                                {6000, 3, std::vector<std::uint64_t>(60, 100)}};
  DiskFiles pristine_;
};

}  // namespace kvtier::testing
