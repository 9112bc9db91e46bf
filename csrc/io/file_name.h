// What counts as the name of a file in a directory. Thread-safe: no state.
#pragma once

#include <string>

namespace kvtier {

/// One path component: not empty, no slash, no zero byte, not "." or "..", at most 255 bytes.
inline bool is_file_name(const std::string& name) {
  constexpr std::size_t kNameBytesMax = 255;
  return !name.empty() && name.size() <= kNameBytesMax && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace kvtier
