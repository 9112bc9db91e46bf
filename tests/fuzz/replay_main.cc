// Runs recorded inputs through one fuzz target, without a fuzzing engine and with any compiler.
// Single-threaded.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t data_bytes);

namespace {

namespace fs = std::filesystem;

/// Lists the regular files beneath `root`, or `root` itself, in an order equal on every machine.
/// Returns nothing when `root` does not exist or cannot be read.
std::optional<std::vector<fs::path>> list_inputs(const fs::path& root) {
  std::error_code error;
  if (fs::is_regular_file(root, error)) return std::vector<fs::path>{root};
  std::vector<fs::path> inputs;
  fs::recursive_directory_iterator entries(root, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (entries->is_regular_file()) inputs.push_back(entries->path());
  }
  if (error) return std::nullopt;
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

std::optional<std::vector<char>> read_input(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return std::nullopt;
  return bytes;
}

bool replay(const fs::path& path) {
  const std::optional<std::vector<char>> bytes = read_input(path);
  if (!bytes) {
    std::fprintf(stderr, "cannot read input: path=%s\n", path.c_str());
    return false;
  }
  // A copy of exactly this size lets the address sanitizer see a read of one byte too many.
  std::vector<std::uint8_t> input(bytes->begin(), bytes->end());
  input.shrink_to_fit();
  if (LLVMFuzzerTestOneInput(input.data(), input.size()) == 0) return true;
  std::fprintf(stderr, "target refused input: path=%s\n", path.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t num_inputs = 0;
  std::size_t num_failed = 0;
  for (int i = 1; i < argc; ++i) {
    const std::optional<std::vector<fs::path>> inputs = list_inputs(argv[i]);
    if (!inputs) {
      std::fprintf(stderr, "cannot list inputs: path=%s\n", argv[i]);
      return 2;
    }
    for (const fs::path& path : *inputs) {
      ++num_inputs;
      if (!replay(path)) ++num_failed;
    }
  }
  std::printf("%zu inputs replayed, %zu failed\n", num_inputs, num_failed);
  return num_failed == 0 ? 0 : 1;
}
