// Files of other format versions and files that are not ours at all (H9), and what else may lie in
// a store's directory.
#include "base/checksum.h"
#include "disk/directory_inspector.h"
#include "format/checksum_purpose.h"
#include "format/little_endian.h"
#include "format_damage.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

/// The page as another version would have written it, with a checksum that fits.
void bump_version(std::span<std::byte> page, format::ChecksumPurpose purpose) {
  REQUIRE(page.size() == 4096);
  const auto version = format::load_little_endian<std::uint32_t>(page.data() + 8);
  format::store_little_endian(page.data() + 8, version + 1);
  const std::uint64_t checksum = checksum_metadata(page.first(4088), format::seed_of(purpose));
  format::store_little_endian(page.data() + 4088, checksum);
}

std::span<std::byte> page_of(std::vector<std::byte>& bytes, std::size_t page_index) {
  return std::span(bytes).subspan(page_index * 4096, 4096);
}

std::string first_segment(const DiskFiles& files) {
  for (const auto& [name, bytes] : files) {
    if (name.starts_with("segment-")) return name;
  }
  return "";
}

}  // namespace

TEST_CASE("H9: a segment of a newer version is counted, left alone and charged") {
  DamagedStore store;
  const std::string name = first_segment(store.pristine());
  std::vector<std::byte> newer;
  const std::size_t num_done = store.deliver_after([&](DiskFiles& files) {
    bump_version(page_of(files.at(name), 0), format::ChecksumPurpose::kSegmentHeader);
    newer = files.at(name);
  });
  CHECK(num_done > 0);
  CHECK(num_done < store.num_blocks());
  CHECK(store.world().store->stats().unknown_files == 1);
  CHECK(store.world().store->stats().unknown_file_bytes >= newer.size());
  CHECK(store.world().num_log_lines_with("other format versions") == 1);
  store.use();
  CHECK(store.world().disk->files().at(name) == newer);
}

TEST_CASE("H9: of two superblock copies one of a newer version leaves the other in charge") {
  DamagedStore store;
  for (std::size_t copy = 0; copy < 2; ++copy) {
    const std::size_t num_done = store.deliver_after([&](DiskFiles& files) {
      bump_version(page_of(files.at("kvtier.superblock"), copy),
                   format::ChecksumPurpose::kSuperblock);
    });
    CHECK(num_done == store.num_blocks());
  }
}

TEST_CASE("H9: a store of a newer version is kept under other names and ours starts empty") {
  DamagedStore store;
  const std::size_t num_done = store.deliver_after([&](DiskFiles& files) {
    for (std::size_t copy = 0; copy < 2; ++copy) {
      bump_version(page_of(files.at("kvtier.superblock"), copy),
                   format::ChecksumPurpose::kSuperblock);
    }
    for (auto& [name, bytes] : files) {
      if (!name.starts_with("segment-")) continue;
      bump_version(page_of(bytes, 0), format::ChecksumPurpose::kSegmentHeader);
    }
  });
  CHECK(num_done == 0);
  CHECK(store.world().disk->files().contains("kvtier.superblock.other-version"));
  CHECK(store.world().store->stats().unknown_files > 1);
  store.world().flush();
}

TEST_CASE("H9: files of newer versions that leave no room are an error that says so") {
  DamagedStore store;
  StoreWorld& world = store.world();
  store.deliver_after([&](DiskFiles& files) {
    for (auto& [name, bytes] : files) {
      if (!name.starts_with("segment-")) continue;
      bump_version(page_of(bytes, 0), format::ChecksumPurpose::kSegmentHeader);
    }
  });
  REQUIRE(world.store->close(kNsPerS).is_ok());
  world.store.reset();
  const std::uint64_t used = world.disk->allocated_bytes();
  world.options.disk_bytes = std::max<std::uint64_t>(1 << 20, used - used / 4);
  const Status opened = world.open();
  CHECK(opened.code() == StatusCode::kConfig);
  CHECK(opened.message().find("kvtier wipe") != std::string::npos);
  CHECK(opened.message().find(std::to_string(world.options.disk_bytes)) != std::string::npos);
  CHECK(world.disk->allocated_bytes() == used);
}

TEST_CASE("H9: foreign files are neither read, counted nor touched") {
  DamagedStore store;
  Random random(42);
  DiskFiles foreign;
  const char* names[] = {"notes.txt",
                         "segment-1.kvtier",
                         "segment-00000001.kvtier.bak",
                         "segment-00000001",
                         "kvtier.superblock.old",
                         "kvtier.namespaces.2",
                         "segment-abc.kvtier",
                         "segment-.kvtier",
                         "core",
                         "Segment-00000001.kvtier"};
  for (const char* name : names) {
    std::vector<std::byte>& bytes = foreign[name];
    for (std::uint64_t i = random.below(20000); i > 0; --i) {
      bytes.push_back(static_cast<std::byte>(random.below(256)));
    }
  }
  const std::size_t num_done =
      store.deliver_after([&](DiskFiles& files) { files.insert(foreign.begin(), foreign.end()); });
  CHECK(num_done == store.num_blocks());
  CHECK(store.world().store->stats().unknown_files == 0);
  store.use();
  REQUIRE(store.world().store->clear(true, true).is_ok());
  for (const auto& [name, bytes] : foreign) {
    CAPTURE(name);
    CHECK(store.world().disk->files().at(name) == bytes);
  }
}

TEST_CASE("H9: files with our names and random contents are dropped without harm") {
  DamagedStore store;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::size_t num_done = store.deliver_after([&](DiskFiles& files) {
      for (const char* name : {"segment-00000900.kvtier", "segment-00000901.kvtier", "kvtier.probe",
                               "segment-4294967295.kvtier"}) {
        std::vector<std::byte>& bytes = files[name];
        for (std::uint64_t i = random.below(10000); i > 0; --i) {
          bytes.push_back(static_cast<std::byte>(random.below(256)));
        }
      }
    });
    CHECK(num_done == store.num_blocks());
    CHECK_FALSE(store.world().disk->files().contains("segment-00000900.kvtier"));
    CHECK_FALSE(store.world().disk->files().contains("kvtier.probe"));
  }
  store.use();
}

TEST_CASE("H9: the highest segment number in a foreign name does not make numbers start over") {
  DamagedStore store;
  store.deliver_after([&](DiskFiles& files) {
    files["segment-4294967295.kvtier"] = std::vector<std::byte>(5000, std::byte{7});
  });
  StoreWorld& world = store.world();
  for (std::uint64_t number = 0; number < 12; ++number) {
    const auto space = world.add_namespace(8192 + 4096 * number, 70 + number);
    CHECK(count_done(world.put(space, 0, 4, 8192 + 4096 * number)) == 4);
  }
  world.flush();
  CHECK(world.num_log_lines_with("cannot grow") == 0);
}

TEST_CASE("the witness that reads files alone agrees with the store after everything it did") {
  DamagedStore store;
  StoreWorld& world = store.world();
  store.deliver_after([](DiskFiles&) {});
  // Only some namespaces come back; a new one shares pages with the others.
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(3900, 50);
  world.put(space, 0, 3, 3900);
  world.flush();
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();
  auto directory = world.disk->make_directory();
  auto report = disk::verify_directory(*directory, nullptr);
  REQUIRE_MESSAGE(report.is_ok(), report.status().to_string());
  CHECK(report.value().is_clean);
  CHECK(report.value().num_blocks == store.num_blocks() + 3);
  CHECK(report.value().num_damaged_entries == 0);
  // Payloads are checked with the parts that a description states; these say nothing of parts.
  for (const auto& damaged : report.value().damaged) {
    CAPTURE(damaged.reason);
    CHECK(damaged.reason.find("length") == std::string::npos);
  }
  std::uint64_t payload_bytes = 3 * 3900;
  payload_bytes += 12 * 1000 + 12 * 4096 + 10 * 20000 + 6 * 70001 + 3 * 6000;
  CHECK(report.value().payload_bytes == payload_bytes);
}
