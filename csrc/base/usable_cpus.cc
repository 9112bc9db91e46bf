// CPU limits from the affinity mask and the control-group files. Thread-safe.
#include "base/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

namespace kvtier {
namespace {

constexpr std::size_t kCpusMax = 1u << 16;

/// One line of mountinfo, as far as control groups need it.
struct Mount {
  std::string root;
  std::string mount_point;
  bool is_v2 = false;
};

std::vector<std::string> words_of(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  std::string word;
  while (std::getline(stream, word, separator)) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) lines.push_back(line);
  return lines;
}

/// The first line as whole numbers; "max" and anything else that is none becomes -1.
std::vector<std::int64_t> numbers_in(const std::string& path) {
  std::vector<std::int64_t> numbers;
  const std::vector<std::string> lines = lines_of(path);
  if (lines.empty()) return numbers;
  for (const std::string& word : words_of(lines.front(), ' ')) {
    std::istringstream stream(word);
    std::int64_t number = -1;
    const bool is_whole = (stream >> number) && stream.eof();
    numbers.push_back(is_whole ? number : -1);
  }
  return numbers;
}

/// mountinfo writes space, tab, newline and backslash in octal.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size();
    const std::string digits = is_escape ? text.substr(i + 1, 3) : "";
    if (!is_escape || digits.find_first_not_of("01234567") != std::string::npos) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>(std::stoi(digits, nullptr, 8) & 0xff);
    i += 3;
  }
  return plain;
}

bool has_word(const std::vector<std::string>& words, const std::string& wanted) {
  return std::find(words.begin(), words.end(), wanted) != words.end();
}

/// Mounts of the unified hierarchy, and of the first version's "cpu" controller.
std::vector<Mount> find_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  for (const std::string& line : lines_of(root + "/proc/self/mountinfo")) {
    const std::size_t middle = line.find(" - ");
    if (middle == std::string::npos) continue;
    const auto fields = words_of(line.substr(0, middle), ' ');
    const auto kinds = words_of(line.substr(middle + 3), ' ');
    if (fields.size() < 5 || kinds.size() < 3) continue;
    const bool is_v1 = kinds[0] == "cgroup" && has_word(words_of(kinds[2], ','), "cpu");
    const bool is_v2 = kinds[0] == "cgroup2";
    if (is_v1 || is_v2) mounts.push_back({unescape(fields[3]), unescape(fields[4]), is_v2});
  }
  return mounts;
}

std::optional<double> quota_of(const std::string& folder, bool is_v2) {
  std::vector<std::int64_t> numbers;
  if (is_v2) {
    numbers = numbers_in(folder + "/cpu.max");
  } else {
    numbers = numbers_in(folder + "/cpu.cfs_quota_us");
    const auto period = numbers_in(folder + "/cpu.cfs_period_us");
    numbers.insert(numbers.end(), period.begin(), period.end());
  }
  if (numbers.size() != 2 || numbers[0] <= 0 || numbers[1] <= 0) return std::nullopt;
  return static_cast<double>(numbers[0]) / static_cast<double>(numbers[1]);
}

/// The folder of `group` below a mount. Inside a container the group's path may lie outside of what
/// is mounted: the top of the mount is then the nearest folder that can be seen.
std::string relative_group(const Mount& mount, const std::string& group) {
  if (group.find("..") != std::string::npos) return "";
  const std::string top = mount.root == "/" ? "" : mount.root;
  const bool is_below = group.compare(0, top.size(), top) == 0 &&
                        (group.size() == top.size() || group[top.size()] == '/');
  const std::string relative = is_below ? group.substr(top.size()) : "";
  return relative == "/" ? "" : relative;
}

std::uint32_t count_allowed_cpus() {
  for (std::size_t num_cpus = 1024; num_cpus <= kCpusMax; num_cpus *= 2) {
    cpu_set_t* allowed = CPU_ALLOC(num_cpus);
    if (allowed == nullptr) return 1;
    const std::size_t num_bytes = CPU_ALLOC_SIZE(num_cpus);
    const bool is_known = sched_getaffinity(0, num_bytes, allowed) == 0;
    const int num_allowed = is_known ? CPU_COUNT_S(num_bytes, allowed) : 0;
    CPU_FREE(allowed);
    if (is_known) return static_cast<std::uint32_t>(std::max(1, num_allowed));
  }
  return 1;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> smallest;
  const std::vector<Mount> mounts = find_mounts(root);
  for (const std::string& line : lines_of(root + "/proc/self/cgroup")) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = words_of(line.substr(first + 1, second - first - 1), ',');
    const bool is_v2 = line.substr(0, first) == "0" && controllers.empty();
    if (!is_v2 && !has_word(controllers, "cpu")) continue;
    for (const Mount& mount : mounts) {
      if (mount.is_v2 != is_v2) continue;
      std::string group = relative_group(mount, line.substr(second + 1));
      while (true) {
        const auto quota = quota_of(root + mount.mount_point + group, is_v2);
        if (quota && (!smallest || *quota < *smallest)) smallest = quota;
        if (group.empty()) break;
        group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
      }
    }
  }
  return smallest;
}

std::uint32_t usable_cpus() {
  const std::uint32_t num_allowed = count_allowed_cpus();
  const std::optional<double> quota = cpu_quota("");
  if (!quota || *quota >= num_allowed) return num_allowed;
  return std::max(1u, static_cast<std::uint32_t>(std::ceil(*quota)));
}

}  // namespace kvtier
