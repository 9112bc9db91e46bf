// Live file: what a running store says of itself to other processes, replaced several times a
// second. Advisory: nothing is ever recovered from it. Bytes <-> text, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvtier::format {

inline constexpr const char* kLiveFileName = "kvtier.live";
/// The file is never longer; charged to the disk cap.
inline constexpr std::size_t kLiveFileBytesMax = 16u << 10;
/// Before the text.
inline constexpr std::size_t kLiveHeaderBytes = 64;
inline constexpr std::uint32_t kLiveVersion = 1;

/// Header and text. Whole lines at the end of `text` that do not fit are left out.
std::vector<std::byte> encode_live_file(std::string_view text);
/// The text. kUnsupported: of another version; kCorrupt: no live file, or one that was read while
/// it was replaced (reading it again helps then).
Result<std::string> decode_live_file(std::span<const std::byte> bytes);

}  // namespace kvtier::format
