// statx(STATX_DIOALIGN), also with C library headers that do not know it. Thread-safe.
#include "io/direct_alignment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace kvtier {
namespace {

// The kernel's struct statx as 32-bit words: 256 bytes, whose layout is part of its interface.
// Older headers lack the two fields (kernel 6.1), so that naming them would not compile there.
constexpr std::size_t kStatxWords = 64;
constexpr std::size_t kMaskWord = 0;
constexpr std::size_t kMemoryAlignmentWord = 38;  // Byte 152.
constexpr std::size_t kOffsetAlignmentWord = 39;  // Byte 156.
constexpr unsigned kStatxDirectAlignment = 0x2000u;

constexpr std::uint32_t kAlignmentBytesMax = 1u << 20;

bool is_plausible(std::uint32_t alignment_bytes) {
  return alignment_bytes > 0 && (alignment_bytes & (alignment_bytes - 1)) == 0 &&
         alignment_bytes <= kAlignmentBytesMax;
}

DirectAlignment ask(int file_fd) {
  std::array<std::uint32_t, kStatxWords> words{};
  const long answer =
      ::syscall(SYS_statx, file_fd, "", AT_EMPTY_PATH, kStatxDirectAlignment, words.data());
  if (answer != 0 || (words[kMaskWord] & kStatxDirectAlignment) == 0) return {};
  // Zeros mean that this file cannot be opened direct at all; opening it will say so.
  if (!is_plausible(words[kMemoryAlignmentWord])) return {};
  if (!is_plausible(words[kOffsetAlignmentWord])) return {};
  return {words[kMemoryAlignmentWord], words[kOffsetAlignmentWord], true};
}

}  // namespace

DirectAlignment probe_direct_alignment(int directory_fd, int file_fd) {
  // Directories do not answer: a file is needed, and one without a name leaves nothing behind.
  const int unnamed_fd = ::openat(directory_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (unnamed_fd < 0) return file_fd < 0 ? DirectAlignment{} : ask(file_fd);
  const DirectAlignment alignment = ask(unnamed_fd);
  ::close(unnamed_fd);
  return alignment;
}

}  // namespace kvtier
