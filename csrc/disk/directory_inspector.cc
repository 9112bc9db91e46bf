// Reads, checks and removes what a store left in its directory. Thread-safe: no state.
#include "disk/directory_inspector.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/checksum.h"
#include "disk/chain_lengths.h"
#include "disk/pacer.h"
#include "disk/segment_file.h"
#include "disk/store_directory.h"
#include "format/namespace_table.h"
#include "format/segment_header.h"
#include "format/slot_table.h"
#include "format/superblock.h"

namespace kvtier::disk {
namespace {

constexpr std::uint64_t kProgressBlocks = 64;
constexpr const char* kProbeFileName = "kvtier.probe";

class OpenedFile {
 public:
  OpenedFile(Directory& directory, int fd) : directory_(directory), fd_(fd) {}
  ~OpenedFile() { directory_.close_file(fd_); }
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  int fd() const { return fd_; }

 private:
  Directory& directory_;
  const int fd_;
};

class HeldLock {
 public:
  explicit HeldLock(Directory& directory) : directory_(directory) {}
  ~HeldLock() { directory_.unlock(); }
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

 private:
  Directory& directory_;
};

Status take_lock(Directory& directory) {
  Status status = directory.lock(format::kLockFileName, "pid " + std::to_string(::getpid()));
  if (status.code() != StatusCode::kBusy) return status;
  return Status(StatusCode::kBusy,
                "directory is in use: path=" + directory.path() + " holder=" + status.message(),
                status.os_errno());
}

// The first bytes of a file, fewer when it is shorter.
Result<std::vector<std::byte>> read_head(Directory& directory, const std::string& name,
                                         std::uint64_t length_bytes_max) {
  Result<int> opened = directory.open_file(name, {});
  if (!opened.is_ok()) return opened.status();
  const OpenedFile file(directory, opened.value());
  Result<FileStat> stat = directory.stat_fd(file.fd());
  if (!stat.is_ok()) return stat.status();
  std::vector<std::byte> bytes(std::min(stat.value().length_bytes, length_bytes_max));
  Status status = directory.read_at(file.fd(), 0, bytes);
  if (!status.is_ok()) return status;
  return bytes;
}

Result<format::Superblock> read_superblock(Directory& directory) {
  auto bytes = read_head(directory, format::kSuperblockFileName, 2 * format::kSuperblockBytes);
  if (bytes.status().code() == StatusCode::kNotFound) {
    return Status(StatusCode::kNotFound, "no kvtier store there: path=" + directory.path());
  }
  if (!bytes.is_ok()) return bytes.status();
  std::optional<format::Superblock> newest;
  Status failure(StatusCode::kCorrupt, "cannot read superblock: file too short");
  const std::span<const std::byte> all(bytes.value());
  for (std::size_t offset = 0; offset + format::kSuperblockBytes <= all.size();
       offset += format::kSuperblockBytes) {
    auto decoded = format::decode_superblock(all.subspan(offset, format::kSuperblockBytes));
    if (!decoded.is_ok()) {
      failure = decoded.status();
    } else if (!newest || decoded.value().sequence > newest->sequence) {
      newest = decoded.value();
    }
  }
  if (newest) return *newest;
  return failure;
}

// The newer of the two tables that belong to the store; empty when it has none yet.
Result<std::vector<NamespaceContents>> read_namespaces(Directory& directory,
                                                       const Digest128& store_id) {
  format::NamespaceTable newest;
  for (const char* name : format::kNamespaceFileNames) {
    auto bytes = read_head(directory, name, format::kNamespaceTableBytesMax + 1);
    if (bytes.status().code() == StatusCode::kNotFound) continue;
    if (!bytes.is_ok()) return bytes.status();
    const std::string_view text(reinterpret_cast<const char*>(bytes.value().data()),
                                bytes.value().size());
    auto table = format::decode_namespace_table(text);
    if (!table.is_ok() || table.value().store_id != store_id) continue;
    if (table.value().sequence >= newest.sequence) newest = std::move(table).value();
  }
  std::vector<NamespaceContents> namespaces;
  for (format::NamespaceRecord& record : newest.records) {
    NamespaceContents& added = namespaces.emplace_back();
    added.namespace_index = record.namespace_index;
    added.id = record.id;
    added.description = std::move(record.description);
  }
  return namespaces;
}

Result<std::vector<std::string>> list_segments(Directory& directory) {
  auto names = directory.list_files();
  if (!names.is_ok()) return names.status();
  std::erase_if(names.value(), [](const std::string& name) {
    return !format::parse_segment_file_name(name).has_value();
  });
  std::sort(names.value().begin(), names.value().end());
  return names;
}

using VisitEntry = std::function<void(const std::string& name, std::uint32_t slot_index,
                                      format::SlotEntry& entry)>;

// Fills `contents.segments` and `unknown_files`, and shows every used entry to `visit`.
Status scan_segments(Directory& directory, DirectoryContents& contents, const VisitEntry& visit) {
  auto names = list_segments(directory);
  if (!names.is_ok()) return names.status();
  for (const std::string& name : names.value()) {
    std::vector<std::pair<std::uint32_t, format::SlotEntry>> entries;
    auto scan = scan_segment_file(directory, name, [&](std::uint32_t slot_index, auto& entry) {
      entries.emplace_back(slot_index, std::move(entry));
    });
    if (scan.status().code() == StatusCode::kNotFound) continue;  // Removed since it was listed.
    if (!scan.is_ok() || scan.value().header.store_id != contents.store_id) {
      contents.unknown_files.push_back(name);
      continue;
    }
    const SegmentScan& segment = scan.value();
    contents.segments.push_back({name, segment.header.slot_bytes, segment.header.num_slots,
                                 segment.num_used, segment.num_damaged, segment.header.file_bytes(),
                                 segment.allocated_bytes});
    for (auto& [slot_index, entry] : entries) visit(name, slot_index, entry);
  }
  return Status::ok();
}

struct FoundEntry {
  std::string segment;
  std::uint32_t slot_index = 0;
  format::SlotEntry entry;
};

// Part sizes as the canonical description states them. A quote inside of a name is escaped, so the
// text `"parts":[` cannot stand in one.
std::vector<std::uint64_t> parse_part_bytes(std::string_view description) {
  constexpr std::string_view kStart = "\"parts\":[";
  std::vector<std::uint64_t> part_bytes;
  const std::size_t start = description.find(kStart);
  if (start == std::string_view::npos) return part_bytes;
  const char* place = description.data() + start + kStart.size();
  const char* end = description.data() + description.size();
  while (place < end && *place != ']') {
    std::uint64_t value = 0;
    const auto [after, error] = std::from_chars(place, end, value);
    if (error != std::errc{}) return {};
    part_bytes.push_back(value);
    place = after < end && *after == ',' ? after + 1 : after;
  }
  return part_bytes;
}

bool is_payload_sound(std::span<const std::byte> payload, const format::SlotEntry& entry,
                      const NamespaceContents& owner) {
  std::vector<std::uint64_t> part_bytes = parse_part_bytes(owner.description);
  if (entry.checksums.size() == 1) part_bytes = {payload.size()};
  if (part_bytes.size() != entry.checksums.size()) return false;
  ChecksumSeed seed{entry.key, owner.id, 0};
  for (const std::uint64_t length_bytes : part_bytes) {
    if (length_bytes > payload.size()) return false;
    if (checksum_part(payload.first(length_bytes), seed) != entry.checksums[seed.part_index]) {
      return false;
    }
    payload = payload.subspan(length_bytes);
    ++seed.part_index;
  }
  return payload.empty();
}

// Checks blocks of one segment after the other, each segment's file opened once.
class BlockVerifier {
 public:
  BlockVerifier(Directory& directory, const DirectoryContents& contents, VerifyReport& report)
      : directory_(directory), report_(report) {
    for (const NamespaceContents& it : contents.namespaces) owners_[it.namespace_index] = &it;
    for (const SegmentContents& it : contents.segments) slot_bytes_[it.name] = it.slot_bytes;
  }
  ~BlockVerifier() { close(); }
  BlockVerifier(const BlockVerifier&) = delete;
  BlockVerifier& operator=(const BlockVerifier&) = delete;

  void verify(const FoundEntry& found) {
    report_.num_blocks += 1;
    report_.payload_bytes += found.entry.length_bytes;
    const auto owner = owners_.find(found.entry.namespace_index);
    if (owner == owners_.end()) return fail(found, {}, "its namespace is not in the table");
    if (found.entry.length_bytes > slot_bytes_[found.segment]) {
      return fail(found, owner->second->id, "longer than its slot");
    }
    payload_.resize(found.entry.length_bytes);
    Status status = read(found);
    if (!status.is_ok()) {
      report_.num_unreadable += 1;
      return note(found, owner->second->id, status.message());
    }
    if (is_payload_sound(payload_, found.entry, *owner->second)) return;
    fail(found, owner->second->id, "its checksum does not fit");
  }

 private:
  Status read(const FoundEntry& found) {
    if (found.segment != segment_) {
      close();
      Result<int> opened = directory_.open_file(found.segment, {});
      if (!opened.is_ok()) return opened.status();
      fd_ = opened.value();
      segment_ = found.segment;
      std::array<std::byte, format::kSegmentHeaderBytes> page;
      Status status = directory_.read_at(fd_, 0, page);
      if (!status.is_ok()) return status;
      auto header = format::decode_segment_header(page);
      if (!header.is_ok()) return header.status();
      header_ = header.value();
    }
    return directory_.read_at(fd_, header_.slot_offset_bytes(found.slot_index), payload_);
  }

  void fail(const FoundEntry& found, const NamespaceId& namespace_id, const std::string& reason) {
    (report_.is_clean ? report_.num_corrupt : report_.num_torn) += 1;
    note(found, namespace_id, reason);
  }

  void note(const FoundEntry& found, const NamespaceId& namespace_id, const std::string& reason) {
    if (report_.damaged.size() == kDamagedBlocksMax) return;
    report_.damaged.push_back(
        {found.segment, found.slot_index, found.entry.key, namespace_id, reason});
  }

  void close() {
    if (fd_ >= 0) directory_.close_file(fd_);
    fd_ = -1;
    segment_.clear();
  }

  Directory& directory_;
  VerifyReport& report_;
  std::unordered_map<std::uint32_t, const NamespaceContents*> owners_;
  std::unordered_map<std::string, std::uint64_t> slot_bytes_;
  std::string segment_;
  int fd_ = -1;
  format::SegmentHeader header_;
  std::vector<std::byte> payload_;
};

Result<DirectoryContents> read_tables(Directory& directory) {
  auto superblock = read_superblock(directory);
  if (!superblock.is_ok()) return superblock.status();
  DirectoryContents contents;
  contents.store_id = superblock.value().store_id;
  contents.is_clean = superblock.value().is_clean;
  auto namespaces = read_namespaces(directory, contents.store_id);
  if (!namespaces.is_ok()) return namespaces.status();
  contents.namespaces = std::move(namespaces).value();
  return contents;
}

bool is_own_file(const std::string& name) {
  return StoreDirectory::is_own_name(name) || name == kProbeFileName;
}

}  // namespace

Result<DirectoryContents> inspect_directory(Directory& directory, InspectDepth depth) {
  auto contents = read_tables(directory);
  if (!contents.is_ok()) return contents;
  std::unordered_map<std::uint32_t, NamespaceContents*> owners;
  for (NamespaceContents& it : contents.value().namespaces) owners[it.namespace_index] = &it;
  ChainLengths chains;
  Status status =
      scan_segments(directory, contents.value(),
                    [&](const std::string& segment, std::uint32_t, format::SlotEntry& entry) {
                      const auto owner = owners.find(entry.namespace_index);
                      if (owner == owners.end()) return;
                      NamespaceContents& space = *owner->second;
                      space.num_blocks += 1;
                      space.num_pinned += entry.pin_count > 0 ? 1 : 0;
                      space.num_chains += entry.is_root ? 1 : 0;
                      space.payload_bytes += entry.length_bytes;
                      if (space.segments.empty() || space.segments.back() != segment) {
                        space.segments.push_back(segment);
                      }
                      if (depth == InspectDepth::kChains) chains.add(entry);
                    });
  if (!status.is_ok()) return status;
  for (const auto& [namespace_index, num_blocks] : chains.longest()) {
    owners[namespace_index]->chain_blocks_max = num_blocks;
  }
  return contents;
}

Result<VerifyReport> verify_directory(Directory& directory, const VerifyProgress& progress,
                                      std::uint64_t bytes_per_s_max) {
  auto contents = read_tables(directory);  // Before the lock, which would make its file.
  if (!contents.is_ok()) return contents.status();
  Status status = take_lock(directory);
  if (!status.is_ok()) return status;
  const HeldLock lock(directory);
  contents = read_tables(directory);
  if (!contents.is_ok()) return contents.status();
  std::vector<FoundEntry> found;
  status = scan_segments(directory, contents.value(),
                         [&](const std::string& name, std::uint32_t slot_index, auto& entry) {
                           found.push_back({name, slot_index, std::move(entry)});
                         });
  if (!status.is_ok()) return status;
  VerifyReport report;
  report.is_clean = contents.value().is_clean;
  report.unknown_files = contents.value().unknown_files;
  for (const SegmentContents& it : contents.value().segments) {
    report.num_damaged_entries += it.num_damaged;
  }
  BlockVerifier verifier(directory, contents.value(), report);
  Pacer pacer(bytes_per_s_max);
  for (const FoundEntry& entry : found) {
    if (progress && report.num_blocks % kProgressBlocks == 0) {
      progress(report.num_blocks, found.size());
    }
    verifier.verify(entry);
    pacer.keep(report.payload_bytes);
  }
  if (progress) progress(report.num_blocks, found.size());
  return report;
}

Result<std::vector<OwnFile>> list_own_files(Directory& directory) {
  auto names = directory.list_files();
  if (!names.is_ok()) return names.status();
  std::sort(names.value().begin(), names.value().end());
  std::vector<OwnFile> files;
  for (const std::string& name : names.value()) {
    if (!is_own_file(name)) continue;
    auto stat = directory.stat_file(name);
    if (stat.is_ok()) files.push_back({name, stat.value().allocated_bytes});
  }
  return files;
}

Result<std::vector<OwnFile>> wipe_directory(Directory& directory) {
  auto files = list_own_files(directory);
  if (!files.is_ok() || files.value().empty()) return files;
  Status status = take_lock(directory);
  if (!status.is_ok()) return status;
  const HeldLock lock(directory);
  files = list_own_files(directory);
  if (!files.is_ok()) return files;
  // Segments first, so that what a crash leaves is a store with fewer blocks; the lock last.
  std::reverse(files.value().begin(), files.value().end());
  std::stable_partition(files.value().begin(), files.value().end(),
                        [](const OwnFile& file) { return file.name != format::kLockFileName; });
  for (const OwnFile& file : files.value()) {
    status = directory.remove_file(file.name);
    if (!status.is_ok() && status.code() != StatusCode::kNotFound) return status;
  }
  status = directory.sync();
  if (!status.is_ok()) return status;
  return files;
}

}  // namespace kvtier::disk
