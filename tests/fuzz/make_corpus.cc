// Writes the corpora of the format fuzz targets: sound samples and damaged ones. Single-threaded.
//
// After a format change: build it with the core library, run it with tests/fuzz/corpus as its
// argument, and commit what changed.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "format/header_page.h"
#include "format/little_endian.h"
#include "format/namespace_table.h"
#include "format/segment_header.h"
#include "format/slot_table.h"
#include "format/superblock.h"
#include "format/uses_file.h"

namespace {

using namespace kvtier::format;

class CorpusFolder {
 public:
  CorpusFolder(const std::filesystem::path& root, const std::string& target)
      : path_(root / target) {
    std::filesystem::create_directories(path_);
  }

  void add(const std::string& name, const std::string& bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write corpus file: " + name);
  }

  /// A sound sample, and what damage commonly makes of it.
  void add_with_damages(const std::string& name, const std::string& bytes) const {
    add(name, bytes);
    std::string flipped = bytes;
    flipped[bytes.size() / 3] = static_cast<char>(flipped[bytes.size() / 3] ^ 0x10);
    add(name + "-flipped", flipped);
    add(name + "-cut", bytes.substr(0, bytes.size() - 1));
  }

 private:
  std::filesystem::path path_;
};

kvtier::Digest128 make_digest(unsigned salt) {
  kvtier::Digest128 digest;
  for (std::size_t index = 0; index < digest.bytes.size(); ++index) {
    digest.bytes[index] = static_cast<std::uint8_t>(salt + 17 * index);
  }
  return digest;
}

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

std::string with_other_version(std::string page, const HeaderKind& kind) {
  store_little_endian(bytes_of(page).data() + kHeaderMagicBytes, kFormatVersion + 1);
  seal_header_page(kind, bytes_of(page));
  return page;
}

void write_superblocks(const std::filesystem::path& root) {
  const CorpusFolder folder(root, "superblock_fuzz");
  std::string page(kSuperblockBytes, 0);
  folder.add("zeroed", page);
  encode_superblock({make_digest(1), 41, true, 1000000}, bytes_of(page));
  folder.add_with_damages("clean", page);
  folder.add("later-version",
             with_other_version(page, {"superblock", "KVTIERSB", ChecksumPurpose::kSuperblock}));
  encode_superblock({make_digest(2), UINT64_MAX, false, UINT64_MAX}, bytes_of(page));
  folder.add("extreme", page);
}

void write_segment_headers(const std::filesystem::path& root) {
  const CorpusFolder folder(root, "segment_header_fuzz");
  std::string page(kSegmentHeaderBytes, 0);
  encode_segment_header(plan_segment(make_digest(1), 7, 292, 917504, 1, 4096), bytes_of(page));
  folder.add_with_damages("one-part", page);
  folder.add("later-version", with_other_version(page, {"segment header", "KVTIERSG",
                                                        ChecksumPurpose::kSegmentHeader}));
  encode_segment_header(plan_segment(make_digest(1), 8, 3, 65536, 505, 65536), bytes_of(page));
  folder.add("many-parts", page);
  encode_segment_header(plan_segment(make_digest(1), UINT32_MAX, UINT32_MAX, 512, 2, 512),
                        bytes_of(page));
  folder.add("many-slots", page);
  folder.add("file-name", segment_file_name(7));
  folder.add("file-name-long", segment_file_name(UINT32_MAX));
}

std::string encode_entry_input(const SlotEntry* entry, std::uint32_t num_parts) {
  std::string input(2 + slot_entry_bytes(num_parts), 0);
  store_little_endian(bytes_of(input).data(), static_cast<std::uint16_t>(num_parts));
  encode_slot_entry(entry, bytes_of(input).subspan(2));
  return input;
}

void write_slot_entries(const std::filesystem::path& root) {
  const CorpusFolder folder(root, "slot_table_fuzz");
  folder.add("empty", encode_entry_input(nullptr, 1));
  folder.add("empty-nine-parts", encode_entry_input(nullptr, 9));
  for (const std::uint32_t num_parts : {1u, 8u, 9u, 505u}) {
    SlotEntry entry{make_digest(3), make_digest(4), false, 2, 917504, 12345, 1, Codec::kRaw, {}};
    for (std::uint32_t part_index = 0; part_index < num_parts; ++part_index) {
      entry.checksums.push_back(0x9e3779b97f4a7c15u * (part_index + 1));
    }
    folder.add_with_damages("parts-" + std::to_string(num_parts),
                            encode_entry_input(&entry, num_parts));
    entry.is_root = true;
    entry.parent = {};
    folder.add("root-" + std::to_string(num_parts), encode_entry_input(&entry, num_parts));
  }
}

void write_namespace_tables(const std::filesystem::path& root) {
  const CorpusFolder folder(root, "namespace_table_fuzz");
  folder.add("empty", encode_namespace_table({make_digest(1), 0, {}}));
  const std::string text =
      encode_namespace_table({make_digest(1),
                              3,
                              {{0, make_digest(2), R"({"model":"m","rank":0})"},
                               {1, make_digest(3), R"({"model":"m","rank":1})"},
                               {4294967295u, make_digest(4), ""}}});
  folder.add_with_damages("three", text);
  std::string later_version = text;
  later_version[later_version.find(" 1 ") + 1] = '2';
  folder.add("later-version", later_version);
}

void write_uses_files(const std::filesystem::path& root) {
  const CorpusFolder folder(root, "uses_file_fuzz");
  const auto encode = [](const UsesFile& file) {
    const std::vector<std::byte> bytes = encode_uses_file(file);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  folder.add("empty", encode({make_digest(1), 0, 0, {}, {}, {}}));
  const std::string text = encode({make_digest(1),
                                   41,
                                   3,
                                   {{1, 2, 3, 4}, {UINT32_MAX, UINT32_MAX, 127, 255}},
                                   {{0, 1.5f, 0.5f}, {3071, 1e9f, 0}},
                                   {{1, 2, 3, 4}, {}, {5, 6, 7, 8}}});
  folder.add_with_damages("some", text);
}

}  // namespace

int main(int num_arguments, char** arguments) {
  if (num_arguments != 2) {
    std::cerr << "usage: make_corpus FOLDER\n";
    return 2;
  }
  write_superblocks(arguments[1]);
  write_segment_headers(arguments[1]);
  write_slot_entries(arguments[1]);
  write_namespace_tables(arguments[1]);
  write_uses_files(arguments[1]);
  return 0;
}
