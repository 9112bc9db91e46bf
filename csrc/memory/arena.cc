// Arena mappings (Linux). Thread safety: see the header.
#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "base/check.h"

namespace kvtier {

namespace {

constexpr std::uint64_t kHugePageBytes = 2u << 20;

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

std::uint64_t physical_bytes() {
  const long num_pages = ::sysconf(_SC_PHYS_PAGES);
  // Unknown: what a process can address at most.
  if (num_pages <= 0) return std::uint64_t{1} << 47;
  return static_cast<std::uint64_t>(num_pages) * page_bytes();
}

std::string errno_text(int os_errno) {
  return std::generic_category().message(os_errno) + " (errno=" + std::to_string(os_errno) + ")";
}

Status exhausted(std::uint64_t need_bytes, const std::string& reason) {
  return Status(StatusCode::kExhausted,
                "cannot map arena: need_bytes=" + std::to_string(need_bytes) + ": " + reason);
}

// Empty when the system has transparent huge pages for those who ask.
std::string huge_pages_refused_because() {
  if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) {
    return "transparent huge pages are switched off for this process";
  }
  const int fd = ::open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "this kernel has no transparent huge pages";
  char text[128];
  const ssize_t num_read = ::read(fd, text, sizeof text);
  ::close(fd);
  if (num_read <= 0) return {};
  const std::string_view setting(text, static_cast<std::size_t>(num_read));
  if (setting.find("[never]") == std::string_view::npos) return {};
  return "transparent huge pages are switched off (/sys/kernel/mm/transparent_hugepage/enabled)";
}

// Maps `fd`, or anonymous memory, with room to spare and gives the ends back, so that the rest
// starts on a huge page.
Result<std::byte*> map_aligned(int fd, std::uint64_t num_bytes, std::uint64_t alignment_bytes) {
  const std::uint64_t spare_bytes = alignment_bytes > page_bytes() ? alignment_bytes : 0;
  const bool is_shared = fd >= 0;
  // Without MAP_NORESERVE: where the system counts what it has promised, it refuses here, and not
  // with a kill at some later first touch. Of shared memory it counts pages as they are touched.
  const int protection = is_shared ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* mapping =
      ::mmap(nullptr, num_bytes + spare_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return exhausted(num_bytes, errno_text(errno));
  auto* bytes = static_cast<std::byte*>(mapping);
  if (is_shared) {
    const std::uint64_t lost_bytes = reinterpret_cast<std::uintptr_t>(bytes) % alignment_bytes;
    std::byte* begin = bytes + (lost_bytes == 0 ? 0 : alignment_bytes - lost_bytes);
    if (::mmap(begin, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != begin) {
      const int os_errno = errno;
      ::munmap(bytes, num_bytes + spare_bytes);
      return exhausted(num_bytes, errno_text(os_errno));
    }
  }
  if (spare_bytes == 0) return bytes;
  const std::uint64_t over_bytes = reinterpret_cast<std::uintptr_t>(bytes) % alignment_bytes;
  const std::uint64_t head_bytes = over_bytes == 0 ? 0 : alignment_bytes - over_bytes;
  const std::uint64_t tail_bytes = spare_bytes - head_bytes;
  if (head_bytes > 0) ::munmap(bytes, head_bytes);
  if (tail_bytes > 0) ::munmap(bytes + head_bytes + num_bytes, tail_bytes);
  return bytes + head_bytes;
}

void add_note(std::string& note, const std::string& text) {
  if (!note.empty()) note += "; ";
  note += text;
}

void advise(std::byte* base, std::uint64_t num_bytes, bool is_private, ArenaInfo& info) {
  if (::madvise(base, num_bytes, MADV_DONTDUMP) != 0) {
    add_note(info.note, "core dumps contain the arena: " + errno_text(errno));
  }
  if (num_bytes < kHugePageBytes) return;
  std::string refusal =
      is_private ? huge_pages_refused_because() : shared_huge_pages_refused_because();
  if (refusal.empty() && ::madvise(base, num_bytes, MADV_HUGEPAGE) != 0) {
    refusal = "transparent huge pages were refused: " + errno_text(errno);
  }
  info.is_huge_page_advised = refusal.empty();
  if (!refusal.empty()) add_note(info.note, refusal);
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(std::uint64_t num_bytes, ArenaKind kind) {
  std::unique_ptr<Arena> arena(new Arena());
  if (num_bytes == 0) return arena;
  // An overcommitting system grants any request and kills somebody later, so this is asked first.
  if (num_bytes > physical_bytes()) {
    return exhausted(num_bytes,
                     "this machine has only memory_bytes=" + std::to_string(physical_bytes()));
  }
  const std::uint64_t unit_bytes = num_bytes >= kHugePageBytes ? kHugePageBytes : page_bytes();
  const std::uint64_t mapped_bytes = (num_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  if (kind == ArenaKind::kShared) {
    auto id = make_arena_id();
    if (!id.is_ok()) return id.status();
    auto fd = create_shared_memory(id.value(), mapped_bytes);
    if (!fd.is_ok()) return fd.status();
    arena->owner_process_id_ = ::getpid();
    arena->fd_ = fd.value();
    arena->id_ = id.value();
  }
  const Status mapped = arena->map(arena->fd_, mapped_bytes);
  if (!mapped.is_ok()) return mapped;
  return arena;
}

Result<std::unique_ptr<Arena>> Arena::open_shared(int fd, const ArenaId& id,
                                                  std::uint64_t num_bytes) {
  const Status checked = check_shared_memory(fd, id, num_bytes);
  if (!checked.is_ok()) return checked;
  std::unique_ptr<Arena> arena(new Arena());
  arena->id_ = id;
  const Status mapped = arena->map(fd, num_bytes);
  if (!mapped.is_ok()) return mapped;
  return arena;
}

Status Arena::map(int fd, std::uint64_t num_bytes) {
  const std::uint64_t unit_bytes = num_bytes >= kHugePageBytes ? kHugePageBytes : page_bytes();
  Result<std::byte*> mapping = map_aligned(fd, num_bytes, unit_bytes);
  if (!mapping.is_ok()) return mapping.status();
  base_ = mapping.value();
  mapped_bytes_ = num_bytes;
  owner_process_id_ = ::getpid();
  is_private_ = fd < 0;
  info_.num_bytes = num_bytes;
  // A promise, not a wish: of private memory a child that inherited the pages would make each write
  // copy a page, and devices would go on writing to the old one; shared memory a child that was
  // forgotten would keep.
  if (::madvise(base_, num_bytes, MADV_DONTFORK) != 0) {
    return Status::from_errno(errno, "cannot keep arena from forked children");
  }
  advise(base_, num_bytes, is_private_, info_);
  return Status::ok();
}

Arena::~Arena() {
  // In a forked child the range is not mapped, or is somebody else's by now.
  if (owner_process_id_ != ::getpid()) return;
  if (mapped_bytes_ > 0) ::munmap(base_, mapped_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void Arena::close_after_fork() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::span<std::byte> Arena::bytes(std::uint64_t offset_bytes, std::uint64_t length_bytes) const {
  KVTIER_CHECK(offset_bytes <= info_.num_bytes);
  KVTIER_CHECK(length_bytes <= info_.num_bytes - offset_bytes);
  return {base_ + offset_bytes, length_bytes};
}

void Arena::release(std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  KVTIER_CHECK(offset_bytes <= info_.num_bytes);
  KVTIER_CHECK(length_bytes <= info_.num_bytes - offset_bytes);
  const std::uint64_t unit_bytes = page_bytes();
  const std::uint64_t begin_bytes = (offset_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  const std::uint64_t end_bytes = (offset_bytes + length_bytes) / unit_bytes * unit_bytes;
  if (begin_bytes >= end_bytes) return;
  std::byte* begin = base_ + begin_bytes;
  // Of shared memory a process gives back its own view only, unless it says that the rest may go.
  const int advice = is_private_ ? MADV_DONTNEED : MADV_REMOVE;
  if (::madvise(begin, end_bytes - begin_bytes, advice) == 0) return;
  // Page-locked memory cannot be given back; that it reads as zero is still kept.
  std::memset(begin, 0, end_bytes - begin_bytes);
}

void Arena::leak() { mapped_bytes_ = 0; }

}  // namespace kvtier
