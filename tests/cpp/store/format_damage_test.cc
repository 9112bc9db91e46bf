// Flipped, cut, zeroed, missing and exchanged bytes in every file of a store: it opens, gives right
// bytes or none, keeps its cap and goes on working.
#include "format_damage.h"

#include <algorithm>
#include <iterator>

using namespace kvtier;
using namespace kvtier::testing;

namespace {

std::vector<std::string> names_of(const DiskFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) names.push_back(name);
  return names;
}

std::vector<std::string> segments_of(const DiskFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) {
    if (name.starts_with("segment-")) names.push_back(name);
  }
  return names;
}

/// Places to damage: some anywhere, more of them where headers and tables lie.
std::uint64_t pick_place(Random& random, std::uint64_t length_bytes) {
  const std::uint64_t head_bytes = std::min<std::uint64_t>(length_bytes, 16384);
  return random.below(random.below(4) == 0 ? length_bytes : head_bytes);
}

}  // namespace

TEST_CASE("undamaged files give every block") {
  DamagedStore store;
  CHECK(store.deliver_after([](DiskFiles&) {}) == store.num_blocks());
  CHECK(store.world().store->stats().disk.corrupt == 0);
}

TEST_CASE("a flipped bit anywhere in any file never gives a wrong byte") {
  DamagedStore store;
  std::size_t num_losses = 0;
  for (const std::string& name : names_of(store.pristine())) {
    CAPTURE(name);
    for (std::uint64_t seed = 1; seed <= 16; ++seed) {
      CAPTURE(seed);
      Random random(seed * 1000003);
      const std::size_t num_done = store.deliver_after([&](DiskFiles& files) {
        std::vector<std::byte>& bytes = files.at(name);
        if (bytes.empty()) return;
        bytes[pick_place(random, bytes.size())] ^= static_cast<std::byte>(1u << random.below(8));
      });
      num_losses += num_done < store.num_blocks() ? 1 : 0;
    }
  }
  CHECK(num_losses > 0);  // Some of it did hit.
  store.use();
}

TEST_CASE("a flipped bit costs no more than one segment, and one block when it hits a payload") {
  DamagedStore store;
  for (const std::string& name : segments_of(store.pristine())) {
    CAPTURE(name);
    const std::uint64_t length_bytes = store.pristine().at(name).size();
    const std::size_t num_done = store.deliver_after(
        [&](DiskFiles& files) { files.at(name)[length_bytes - length_bytes / 3] ^= std::byte{4}; });
    CHECK(num_done + 1 >= store.num_blocks());
  }
}

TEST_CASE("a file that was cut anywhere never gives a wrong byte") {
  DamagedStore store;
  for (const std::string& name : names_of(store.pristine())) {
    CAPTURE(name);
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      Random random(seed * 7919);
      store.deliver_after([&](DiskFiles& files) {
        std::vector<std::byte>& bytes = files.at(name);
        bytes.resize(bytes.empty() ? 0 : pick_place(random, bytes.size()));
      });
    }
    store.deliver_after([&](DiskFiles& files) { files.at(name).clear(); });
    store.use();
  }
}

TEST_CASE("a missing file costs only what lay in it") {
  DamagedStore store;
  for (const std::string& name : names_of(store.pristine())) {
    CAPTURE(name);
    const std::size_t num_done = store.deliver_after([&](DiskFiles& files) { files.erase(name); });
    const bool is_payload = name.starts_with("segment-");
    // One of the two namespace tables is the newer one; without it younger namespaces are unknown.
    const bool is_table = name.starts_with("kvtier.namespaces");
    if (!is_payload && !is_table) CHECK(num_done == store.num_blocks());
    store.use();
  }
}

TEST_CASE("zeroed sectors never give a wrong byte") {
  DamagedStore store;
  for (const std::string& name : names_of(store.pristine())) {
    CAPTURE(name);
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      Random random(seed * 104729);
      store.deliver_after([&](DiskFiles& files) {
        std::vector<std::byte>& bytes = files.at(name);
        if (bytes.empty()) return;
        const std::uint64_t first = pick_place(random, bytes.size()) / 512 * 512;
        const std::uint64_t last =
            std::min<std::uint64_t>(bytes.size(), first + 512 * (1 + random.below(8)));
        std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(first),
                  bytes.begin() + static_cast<std::ptrdiff_t>(last), std::byte{0});
      });
    }
  }
  store.use();
}

TEST_CASE("table pages exchanged between segments never give a wrong byte") {
  DamagedStore store;
  const auto segments = segments_of(store.pristine());
  REQUIRE(segments.size() >= 4);
  for (const std::string& one : segments) {
    for (const std::string& other : segments) {
      if (one == other) continue;
      CAPTURE(one);
      CAPTURE(other);
      store.deliver_after([&](DiskFiles& files) {
        // The header stands in front of the table.
        std::swap_ranges(files.at(one).begin() + 4096, files.at(one).begin() + 8192,
                         files.at(other).begin() + 4096);
      });
      store.use();
    }
  }
}

TEST_CASE("payload pages exchanged within and between segments never give a wrong byte") {
  DamagedStore store;
  const auto segments = segments_of(store.pristine());
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    store.deliver_after([&](DiskFiles& files) {
      std::vector<std::byte>& one = files.at(segments[random.below(segments.size())]);
      std::vector<std::byte>& other = files.at(segments[random.below(segments.size())]);
      const std::uint64_t pages = std::min(one.size(), other.size()) / 4096;
      const std::uint64_t from = (1 + random.below(pages - 1)) * 4096;
      const std::uint64_t to = (1 + random.below(pages - 1)) * 4096;
      std::vector<std::byte> kept(one.begin() + static_cast<std::ptrdiff_t>(from),
                                  one.begin() + static_cast<std::ptrdiff_t>(from + 4096));
      std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(to), 4096,
                  one.begin() + static_cast<std::ptrdiff_t>(from));
      std::copy(kept.begin(), kept.end(), other.begin() + static_cast<std::ptrdiff_t>(to));
    });
  }
}

TEST_CASE("a segment file copied over another gives no wrong byte and the rest stays") {
  DamagedStore store;
  const auto segments = segments_of(store.pristine());
  for (const std::string& source : segments) {
    for (const std::string& target : segments) {
      if (source == target) continue;
      const std::size_t num_done =
          store.deliver_after([&](DiskFiles& files) { files.at(target) = files.at(source); });
      CHECK(num_done > 0);
    }
  }
  store.use();
}

TEST_CASE("a segment of another store that lies in the directory is not taken for one of ours") {
  DamagedStore store(1);
  DamagedStore other(2);
  const auto foreign = segments_of(other.pristine());
  for (const std::string& name : foreign) {
    store.deliver_after(
        [&](DiskFiles& files) { files["segment-00000777.kvtier"] = other.pristine().at(name); });
    store.deliver_after([&](DiskFiles& files) { files[name] = other.pristine().at(name); });
  }
  // The whole of another store's tables over ours.
  store.deliver_after([&](DiskFiles& files) {
    for (const auto& [name, bytes] : other.pristine()) {
      if (!name.starts_with("segment-")) files[name] = bytes;
    }
  });
  store.use();
}

TEST_CASE("a checker that looks at delivered bytes notices a single wrong one") {
  // The canary of this file: the comparison that all of the above rests on.
  const auto right = payload_of(7, 1000);
  for (std::size_t place = 0; place < right.size(); ++place) {
    auto wrong = right;
    wrong[place] ^= std::byte{1};
    CHECK(wrong != right);
  }
  CHECK(payload_of(7, 1000, 0) != payload_of(7, 1000, 1));
  CHECK(payload_of(7, 1000) != payload_of(8, 1000));
}
