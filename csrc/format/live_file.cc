// "kvtier-live <version> <text bytes> <checksum>", blanks up to a line feed, then the text.
#include "format/live_file.h"

#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/checksum.h"
#include "format/checksum_purpose.h"

namespace kvtier::format {
namespace {

constexpr std::string_view kMagic = "kvtier-live ";

std::uint64_t checksum_of(std::string_view text) {
  return checksum_metadata(std::as_bytes(std::span(text.data(), text.size())),
                           seed_of(ChecksumPurpose::kLiveFile));
}

/// Reads a number and the blank behind it.
bool take_number(std::string_view& header, std::uint64_t& number, int base) {
  const auto [end, error] =
      std::from_chars(header.data(), header.data() + header.size(), number, base);
  if (error != std::errc{} || end == header.data() + header.size() || *end != ' ') return false;
  header.remove_prefix(static_cast<std::size_t>(end - header.data()) + 1);
  return true;
}

}  // namespace

std::vector<std::byte> encode_live_file(std::string_view text) {
  constexpr std::size_t kTextBytesMax = kLiveFileBytesMax - kLiveHeaderBytes;
  if (text.size() > kTextBytesMax) {
    const std::size_t last = text.rfind('\n', kTextBytesMax - 1);
    text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
  }
  char header[kLiveHeaderBytes + 1] = {};
  std::snprintf(header, sizeof header, "%s%u %zu %016llx ", kMagic.data(), kLiveVersion,
                text.size(), static_cast<unsigned long long>(checksum_of(text)));
  std::string bytes(header);
  bytes.resize(kLiveHeaderBytes - 1, ' ');
  bytes += '\n';
  bytes += text;
  // Always of one length: once there, it needs no more room on a full disk.
  bytes.resize(kLiveFileBytesMax);
  const auto encoded = std::as_bytes(std::span(bytes.data(), bytes.size()));
  return {encoded.begin(), encoded.end()};
}

Result<std::string> decode_live_file(std::span<const std::byte> bytes) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (all.size() < kLiveHeaderBytes || !all.starts_with(kMagic)) {
    return Status(StatusCode::kCorrupt, "not a live file");
  }
  std::string_view header = all.substr(kMagic.size(), kLiveHeaderBytes - kMagic.size());
  std::uint64_t version = 0;
  if (!take_number(header, version, 10)) {
    return Status(StatusCode::kCorrupt, "the live file has no version");
  }
  if (version != kLiveVersion) {
    return Status(StatusCode::kUnsupported,
                  "the live file is of another version: version=" + std::to_string(version) +
                      " known=" + std::to_string(kLiveVersion));
  }
  std::uint64_t text_bytes = 0;
  std::uint64_t checksum = 0;
  if (!take_number(header, text_bytes, 10) || !take_number(header, checksum, 16)) {
    return Status(StatusCode::kCorrupt, "the header of the live file is damaged");
  }
  const std::string_view rest = all.substr(kLiveHeaderBytes);
  // Longer files are fine: what an earlier text left behind its end stays there.
  if (text_bytes > rest.size() || checksum_of(rest.substr(0, text_bytes)) != checksum) {
    return Status(StatusCode::kCorrupt, "the live file was read while it was replaced");
  }
  return std::string(rest.substr(0, text_bytes));
}

}  // namespace kvtier::format
