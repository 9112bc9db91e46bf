// What direct I/O in a directory needs, asked of the kernel. Thread-safe: no state.
#pragma once

#include "io/directory.h"

namespace kvtier {

/// Asks statx(STATX_DIOALIGN) on an unnamed file in `directory_fd`, or on `file_fd` (-1: none)
/// where the file system has no unnamed files. The defaults of DirectAlignment when nothing
/// answers.
DirectAlignment probe_direct_alignment(int directory_fd, int file_fd);

}  // namespace kvtier
