// Text form of digests. Thread-safe.
#include "base/digest.h"

namespace kvtier {

std::string Digest128::to_hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(32);
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace kvtier
