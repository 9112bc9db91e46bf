// Lock, superblock, namespace tables and uses file of a store directory. Blocking; one thread at a
// time.
#include "disk/store_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "format/live_file.h"
#include "format/segment_header.h"
#include "format/uses_file.h"
#include "io/directory_lock.h"

namespace kvtier::disk {
namespace {

constexpr const char* kProbeFileName = "kvtier.probe";
constexpr const char* kOtherVersionSuffix = ".other-version";

Digest128 random_id() {
  std::random_device device;
  Digest128 id;
  for (std::size_t i = 0; i < id.bytes.size(); i += 4) {
    const std::uint32_t word = device();
    std::memcpy(id.bytes.data() + i, &word, sizeof word);
  }
  return id;
}

class File {
 public:
  static Result<File> open(Directory& directory, const std::string& name, const OpenFlags& flags) {
    auto opened = directory.open_file(name, flags);
    if (!opened.is_ok()) return opened.status();
    return File(directory, opened.value());
  }
  File(File&& other) noexcept : directory_(other.directory_), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) directory_.close_file(fd_);
  }
  int fd() const { return fd_; }

 private:
  File(Directory& directory, int fd) : directory_(directory), fd_(fd) {}
  Directory& directory_;
  int fd_;
};

bool is_missing(const Status& status) { return status.os_errno() == ENOENT; }

Result<std::vector<std::byte>> read_whole(Directory& directory, const std::string& name,
                                          std::uint64_t bytes_max) {
  auto file = File::open(directory, name, OpenFlags{});
  if (!file.is_ok()) return file.status();
  auto stat = directory.stat_fd(file.value().fd());
  if (!stat.is_ok()) return stat.status();
  if (stat.value().length_bytes > bytes_max) {
    return Status(StatusCode::kCorrupt, "file is too large: name=" + name + " length_bytes=" +
                                            std::to_string(stat.value().length_bytes));
  }
  std::vector<std::byte> bytes(stat.value().length_bytes);
  const Status read = directory.read_at(file.value().fd(), 0, bytes);
  if (!read.is_ok()) return read;
  return bytes;
}

Status write_durably(Directory& directory, const std::string& name, std::uint64_t offset_bytes,
                     std::span<const std::byte> bytes, bool is_whole_file) {
  auto file = File::open(directory, name, OpenFlags{true, false, false});
  if (!file.is_ok()) return file.status();
  if (is_whole_file) {
    const Status cut = directory.truncate(file.value().fd(), bytes.size());
    if (!cut.is_ok()) return cut;
  }
  const Status written = directory.write_at(file.value().fd(), offset_bytes, bytes);
  if (!written.is_ok()) return written;
  const Status synced = directory.sync_file(file.value().fd());
  return synced.is_ok() ? directory.sync() : synced;
}

}  // namespace

Status StoreDirectory::lock(Clock& clock, TimeNs wait_ns) {
  const std::string text = "pid " + std::to_string(::getpid());
  return lock_directory(directory_, clock, format::kLockFileName, text, wait_ns);
}

Status StoreDirectory::load() {
  is_fresh_ = false;
  const Status loaded = load_superblock();
  if (!loaded.is_ok()) return loaded;
  return load_namespaces();
}

Status StoreDirectory::load_superblock() {
  auto bytes = read_whole(directory_, format::kSuperblockFileName, 1u << 20);
  if (!bytes.is_ok() && bytes.status().code() == StatusCode::kIoError &&
      !is_missing(bytes.status())) {
    return bytes.status();
  }
  bool has_valid = false;
  bool has_other_version = false;
  for (std::size_t i = 0; bytes.is_ok() && i < 2; ++i) {
    const std::size_t begin = i * format::kSuperblockBytes;
    if (begin + format::kSuperblockBytes > bytes.value().size()) break;
    auto decoded = format::decode_superblock(
        std::span(bytes.value()).subspan(begin, format::kSuperblockBytes));
    has_other_version |= decoded.status().code() == StatusCode::kUnsupported;
    if (!decoded.is_ok()) continue;
    if (!has_valid || decoded.value().sequence > superblock_.sequence) {
      superblock_ = decoded.value();
    }
    has_valid = true;
  }
  if (has_valid) return Status::ok();
  if (has_other_version) {
    const Status kept = keep_other_version();
    if (!kept.is_ok()) return kept;
  }
  start_fresh();
  return Status::ok();
}

Status StoreDirectory::load_namespaces() {
  namespaces_ = format::NamespaceTable{};
  for (const char* name : format::kNamespaceFileNames) {
    auto bytes = read_whole(directory_, name, format::kNamespaceTableBytesMax);
    if (!bytes.is_ok()) continue;  // Missing or unreadable: the other one counts.
    const std::string_view text(reinterpret_cast<const char*>(bytes.value().data()),
                                bytes.value().size());
    auto decoded = format::decode_namespace_table(text);
    if (!decoded.is_ok()) continue;
    const bool is_ours = is_fresh_ || decoded.value().store_id == superblock_.store_id;
    if (is_ours && decoded.value().sequence > namespaces_.sequence) {
      namespaces_ = std::move(decoded).value();
    }
  }
  if (is_fresh_ && namespaces_.sequence > 0) {
    // Both superblocks are damaged, but the table knows whose directory this is.
    superblock_.store_id = namespaces_.store_id;
    superblock_.is_clean = false;
    is_fresh_ = false;
  }
  namespaces_.store_id = superblock_.store_id;
  return Status::ok();
}

/// A store of another version keeps its files under other names; it can be brought back by
/// renaming.
Status StoreDirectory::keep_other_version() {
  const char* names[] = {format::kSuperblockFileName, format::kNamespaceFileNames[0],
                         format::kNamespaceFileNames[1], format::kUsesFileName};
  for (const std::string name : names) {
    if (!directory_.stat_file(name).is_ok()) continue;
    const Status renamed = directory_.rename_file(name, name + kOtherVersionSuffix);
    if (!renamed.is_ok()) return renamed;
  }
  return directory_.sync();
}

void StoreDirectory::start_fresh() {
  superblock_ = format::Superblock{};
  superblock_.store_id = random_id();
  superblock_.is_clean = true;
  is_fresh_ = true;
}

void StoreDirectory::reset() {
  start_fresh();
  namespaces_ = format::NamespaceTable{};
  namespaces_.store_id = superblock_.store_id;
}

Status StoreDirectory::save_superblock(bool is_clean, std::uint64_t generation_max) {
  format::Superblock next = superblock_;
  ++next.sequence;
  next.is_clean = is_clean;
  next.generation_max = generation_max;
  std::vector<std::byte> page(format::kSuperblockBytes);
  format::encode_superblock(next, page);
  // The older copy is overwritten; the newer one stays whole if this write is torn.
  const std::uint64_t place = next.sequence % 2 * format::kSuperblockBytes;
  const Status written = write_durably(directory_, format::kSuperblockFileName, place, page, false);
  if (written.is_ok()) superblock_ = next;
  return written;
}

Status StoreDirectory::add_namespace(const format::NamespaceRecord& record) {
  format::NamespaceTable next = namespaces_;
  next.records.push_back(record);
  ++next.sequence;
  const std::string text = format::encode_namespace_table(next);
  if (text.size() > format::kNamespaceTableBytesMax) {
    return Status(StatusCode::kExhausted, "namespace table is full: num_namespaces=" +
                                              std::to_string(namespaces_.records.size()));
  }
  const Status written = write_durably(directory_, format::kNamespaceFileNames[next.sequence % 2],
                                       0, std::as_bytes(std::span(text)), true);
  if (written.is_ok()) namespaces_ = std::move(next);
  return written;
}

Status StoreDirectory::save_uses(std::span<const std::byte> bytes) {
  const Status written = write_durably(directory_, format::kNewUsesFileName, 0, bytes, true);
  if (!written.is_ok()) {
    (void)directory_.remove_file(format::kNewUsesFileName).is_ok();  // list() removes leftovers.
    return written;
  }
  const Status renamed = directory_.rename_file(format::kNewUsesFileName, format::kUsesFileName);
  return renamed.is_ok() ? directory_.sync() : renamed;
}

Result<std::optional<std::vector<std::byte>>> StoreDirectory::load_uses() {
  auto bytes = read_whole(directory_, format::kUsesFileName, format::kUsesFileBytesMax);
  if (bytes.is_ok()) return std::optional(std::move(bytes).value());
  if (is_missing(bytes.status())) return std::optional<std::vector<std::byte>>();
  return bytes.status();
}

Status StoreDirectory::remove_uses() {
  const Status removed = directory_.remove_file(format::kUsesFileName);
  if (is_missing(removed)) return Status::ok();
  return removed.is_ok() ? directory_.sync() : removed;
}

Result<DirectoryListing> StoreDirectory::list() {
  auto names = directory_.list_files();
  if (!names.is_ok()) return names.status();
  DirectoryListing listing;
  for (const std::string& name : names.value()) {
    // What an earlier run told of itself is not true any more.
    if (name == kProbeFileName || name == format::kNewUsesFileName ||
        name == format::kLiveFileName) {
      const Status removed = directory_.remove_file(name);
      if (!removed.is_ok()) return removed;
    }
    if (format::parse_segment_file_name(name)) listing.segment_names.push_back(name);
    if (name.ends_with(kOtherVersionSuffix) && is_own_name(name)) {
      listing.unknown_names.push_back(name);
      auto stat = directory_.stat_file(name);
      if (stat.is_ok()) listing.unknown_bytes += stat.value().allocated_bytes;
    }
  }
  std::sort(listing.segment_names.begin(), listing.segment_names.end());
  return listing;
}

Status StoreDirectory::remove_all_files() {
  auto names = directory_.list_files();
  if (!names.is_ok()) return names.status();
  Status first_failure;
  for (const std::string& name : names.value()) {
    if (!is_own_name(name) || name == format::kLockFileName) continue;
    Status removed = directory_.remove_file(name);
    if (!removed.is_ok() && first_failure.is_ok()) first_failure = std::move(removed);
  }
  return first_failure.is_ok() ? directory_.sync() : first_failure;
}

std::uint64_t StoreDirectory::fixed_bytes() {
  std::uint64_t total = 0;
  const char* names[] = {format::kLockFileName, format::kSuperblockFileName,
                         format::kNamespaceFileNames[0], format::kNamespaceFileNames[1]};
  for (const char* name : names) {
    auto stat = directory_.stat_file(name);
    if (stat.is_ok()) total += stat.value().allocated_bytes;
  }
  // It may come at any time.
  auto live = directory_.stat_file(format::kLiveFileName);
  const std::uint64_t live_bytes = live.is_ok() ? live.value().allocated_bytes : 0;
  return total + std::max<std::uint64_t>(live_bytes, format::kLiveFileBytesMax);
}

std::uint64_t StoreDirectory::uses_bytes() {
  auto stat = directory_.stat_file(format::kUsesFileName);
  return stat.is_ok() ? stat.value().allocated_bytes : 0;
}

bool StoreDirectory::is_own_name(const std::string& name) {
  if (format::parse_segment_file_name(name)) return true;
  const std::string kept[] = {format::kSuperblockFileName, format::kNamespaceFileNames[0],
                              format::kNamespaceFileNames[1], format::kUsesFileName};
  for (const std::string& each : kept) {
    if (name == each || name == each + kOtherVersionSuffix) return true;
  }
  return name == format::kLockFileName || name == kProbeFileName ||
         name == format::kNewUsesFileName || name == format::kLiveFileName;
}

DirectProbe probe_direct(Directory& directory) {
  DirectProbe probe;
  probe.alignment = directory.direct_alignment();
  auto file = File::open(directory, kProbeFileName, OpenFlags{true, false, true});
  if (!file.is_ok()) {
    probe.reason = file.status().message();
  } else {
    // Twice the unit, at an offset of one unit: what a block in a slot looks like.
    const std::size_t unit_bytes =
        std::max<std::size_t>(probe.alignment.offset_bytes, probe.alignment.memory_bytes);
    std::vector<std::byte> room(unit_bytes * 4);
    void* place = room.data();
    std::size_t space = room.size();
    auto* aligned = static_cast<std::byte*>(std::align(unit_bytes, unit_bytes * 2, place, space));
    const std::span<std::byte> bytes(aligned, unit_bytes * 2);
    std::memset(bytes.data(), 0xa5, bytes.size());
    Status status = directory.write_at(file.value().fd(), unit_bytes, bytes);
    std::memset(bytes.data(), 0, bytes.size());
    if (status.is_ok()) status = directory.read_at(file.value().fd(), unit_bytes, bytes);
    const bool is_same = std::all_of(bytes.begin(), bytes.end(),
                                     [](std::byte byte) { return byte == std::byte{0xa5}; });
    probe.is_direct = status.is_ok() && is_same;
    if (!probe.is_direct) {
      probe.reason = status.is_ok() ? "the probe read other bytes than it wrote" : status.message();
    }
  }
  (void)directory.remove_file(kProbeFileName).is_ok();  // list() removes leftovers.
  return probe;
}

}  // namespace kvtier::disk
