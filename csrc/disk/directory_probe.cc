// Tries direct I/O, preallocation and raw rates on a temporary file. Thread-safe: no state.
#include "disk/directory_probe.h"

#include <sys/vfs.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "memory/aligned_buffer.h"
#include "memory/arena.h"

namespace kvtier::disk {
namespace {

constexpr const char* kProbeFileName = "kvtier.probe";
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kTrialBytes = 4096;
// Enough to keep an SSD busy without a queue that a small machine could not hold.
constexpr unsigned kNumThreads = 8;

struct FileSystemName {
  std::uint64_t magic;
  const char* name;
};
constexpr FileSystemName kFileSystemNames[] = {
    {0xef53, "ext4"},         {0x58465342, "xfs"},   {0x9123683e, "btrfs"},
    {0x01021994, "tmpfs"},    {0x858458f6, "ramfs"}, {0x6969, "nfs"},
    {0xff534d42, "cifs"},     {0xfe534d42, "smb2"},  {0x794c7630, "overlayfs"},
    {0x2fc12fc1, "zfs"},      {0xf2f52010, "f2fs"},  {0x65735546, "fuse"},
    {0x01021997, "9p"},       {0x00c36400, "ceph"},  {0x0bd00bd0, "lustre"},
    {0xca451a4e, "bcachefs"}, {0x2011bab0, "exfat"}, {0x4d44, "msdos"},
};

// Not zeros: some devices and file systems store those for nothing.
void fill(std::byte* bytes) {
  std::uint64_t state = 0x9e3779b97f4a7c15ull;
  for (std::size_t offset = 0; offset < kChunkBytes; offset += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes + offset, &state, sizeof state);
  }
}

AlignedBuffer make_buffer() {
  AlignedBuffer bytes = make_aligned_buffer(kChunkBytes);
  fill(bytes.get());
  return bytes;
}

// The file is closed and removed at the end of the scope, however the probe went.
class ProbeFile {
 public:
  ProbeFile(Directory& directory, bool is_direct) : directory_(directory) {
    OpenFlags flags;
    flags.is_created = true;
    flags.is_direct = is_direct;
    opened_ = std::make_unique<Result<int>>(directory.open_file(kProbeFileName, flags));
  }
  ~ProbeFile() {
    if (!opened_->is_ok()) return;
    directory_.close_file(opened_->value());
    static_cast<void>(directory_.remove_file(kProbeFileName));
  }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  Status status() const { return opened_->status(); }
  int fd() const { return opened_->value(); }

 private:
  Directory& directory_;
  std::unique_ptr<Result<int>> opened_;
};

std::string message_of(const Status& status) { return status.is_ok() ? "" : status.message(); }

std::string find_file_system(const std::string& path) {
  struct statfs space{};
  if (::statfs(path.c_str(), &space) != 0) return "unknown";
  const auto magic = static_cast<std::uint64_t>(space.f_type) & 0xffffffffu;
  for (const FileSystemName& it : kFileSystemNames) {
    if (it.magic == magic) return it.name;
  }
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(magic));
  return text;
}

Status try_write(Directory& directory, bool is_direct) {
  const ProbeFile file(directory, is_direct);
  if (!file.status().is_ok()) return file.status();
  const AlignedBuffer source = make_buffer();
  const AlignedBuffer target = make_buffer();
  std::memset(target.get(), 0, kTrialBytes);
  Status status = directory.write_at(file.fd(), 0, std::span(source.get(), kTrialBytes));
  if (!status.is_ok()) return status;
  status = directory.read_at(file.fd(), 0, std::span(target.get(), kTrialBytes));
  if (!status.is_ok()) return status;
  if (std::memcmp(source.get(), target.get(), kTrialBytes) == 0) return Status::ok();
  return Status(StatusCode::kCorrupt, "a block came back with other bytes than were written");
}

Status try_allocate(Directory& directory) {
  const ProbeFile file(directory, false);
  if (!file.status().is_ok()) return file.status();
  return directory.allocate(file.fd(), 0, kChunkBytes);
}

// Moves the file's chunks on several threads, each taking every kNumThreads-th; GB/s, or 0 on
// failure.
template <typename MoveChunk>
double measure(Clock& clock, const Arena& arena, std::uint64_t num_chunks,
               const MoveChunk& move_chunk) {
  std::vector<Status> statuses(kNumThreads);
  std::vector<std::thread> threads;
  const TimeNs start_ns = clock.now_ns();
  for (unsigned thread_index = 0; thread_index < kNumThreads; ++thread_index) {
    threads.emplace_back([&, thread_index] {
      const std::span<std::byte> buffer = arena.bytes(thread_index * kChunkBytes, kChunkBytes);
      Status& status = statuses[thread_index];
      for (std::uint64_t chunk = thread_index; chunk < num_chunks && status.is_ok();
           chunk += kNumThreads) {
        status = move_chunk(chunk * kChunkBytes, buffer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto elapsed_ns = static_cast<double>(std::max<TimeNs>(1, clock.now_ns() - start_ns));
  const bool is_ok =
      std::all_of(statuses.begin(), statuses.end(), [](const Status& it) { return it.is_ok(); });
  return is_ok ? static_cast<double>(num_chunks * kChunkBytes) / elapsed_ns : 0;
}

void measure_rates(Directory& directory, Clock& clock, std::uint64_t num_chunks, bool is_direct,
                   DirectoryProbe& probe) {
  const ProbeFile file(directory, is_direct);
  if (!file.status().is_ok()) return;
  // An arena as the store's own: direct I/O into small pages runs at a fraction of the rate.
  auto arena = Arena::create(kNumThreads * kChunkBytes);
  if (!arena.is_ok()) return;
  for (unsigned i = 0; i < kNumThreads; ++i) fill(arena.value()->base() + i * kChunkBytes);
  // Reserved first where possible, as the store does: else growing the file would be measured.
  static_cast<void>(directory.allocate(file.fd(), 0, num_chunks * kChunkBytes));
  probe.write_gb_per_s =
      measure(clock, *arena.value(), num_chunks, [&](std::uint64_t offset, auto bytes) {
        return directory.write_at(file.fd(), offset, bytes);
      });
  if (probe.write_gb_per_s == 0) return;
  if (!directory.sync_file(file.fd()).is_ok()) return;
  probe.read_gb_per_s =
      measure(clock, *arena.value(), num_chunks, [&](std::uint64_t offset, auto bytes) {
        return directory.read_at(file.fd(), offset, bytes);
      });
}

}  // namespace

Result<DirectoryProbe> probe_directory(Directory& directory, Clock& clock,
                                       std::uint64_t probe_bytes) {
  DirectoryProbe probe;
  probe.file_system = find_file_system(directory.path());
  probe.file_system_block_bytes = directory.file_system_block_bytes();
  probe.direct_alignment = directory.direct_alignment();
  auto free_bytes = directory.free_bytes();
  if (!free_bytes.is_ok()) return free_bytes.status();
  probe.free_bytes = free_bytes.value();
  probe.write_error = message_of(try_write(directory, false));
  probe.is_writable = probe.write_error.empty();
  if (!probe.is_writable) return probe;
  probe.direct_write_error = message_of(try_write(directory, true));
  probe.fallocate_error = message_of(try_allocate(directory));
  // The probe must not be what fills the disk.
  const std::uint64_t num_chunks = std::min(probe_bytes, probe.free_bytes / 4) / kChunkBytes;
  const bool is_direct = probe.direct_write_error.empty();
  if (num_chunks > 0) measure_rates(directory, clock, num_chunks, is_direct, probe);
  return probe;
}

}  // namespace kvtier::disk
