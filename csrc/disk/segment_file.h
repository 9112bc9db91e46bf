// Segment files: making one and reading its tables. Blocking; thread-safe as far as Directory is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "format/segment_header.h"
#include "format/slot_table.h"
#include "io/directory.h"

namespace kvtier::disk {

struct CreatedFile {
  int fd = -1;
  std::uint64_t allocated_bytes = 0;
};

/// Makes the file of `header` durably: space reserved (or only its length set where the file system
/// cannot reserve), header written, table empty. Leaves nothing behind when it fails.
Result<CreatedFile> create_segment_file(Directory& directory, const format::SegmentHeader& header,
                                        bool is_direct);

/// Removes the file durably. When that fails its header is voided, so that no later open takes its
/// entries for blocks; `is_void` says whether that worked.
Status remove_segment_file(Directory& directory, const std::string& name, bool& is_void);

/// kUnsupported: another format version. kCorrupt: not a sound header.
Result<format::SegmentHeader> read_segment_header(Directory& directory, const std::string& name);

/// Whether the file is what a kill in create_segment_file() leaves: empty, or all zeros where the
/// header and the first table page belong. Nothing was ever committed to it.
bool is_unfinished_segment(Directory& directory, const std::string& name);

struct SegmentScan {
  format::SegmentHeader header;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t num_used = 0;
  std::uint64_t num_damaged = 0;
};

/// Reads header and slot table; calls `visit(slot_index, entry)` for each used entry. The entry may
/// be moved from. kUnsupported: another format version. kCorrupt: header damaged, or file too
/// short.
Result<SegmentScan> scan_segment_file(
    Directory& directory, const std::string& name,
    const std::function<void(std::uint32_t slot_index, format::SlotEntry& entry)>& visit);

}  // namespace kvtier::disk
