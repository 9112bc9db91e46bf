// Reports a failed KVTIER_CHECK. Thread-safe.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvtier {

void check_failed(const char* condition, const char* file, int line, const std::string& values) {
  std::string text = "invariant does not hold: " + std::string(condition) + " at " + file + ":" +
                     std::to_string(line);
  if (!values.empty()) text += " (" + values + ")";
#ifdef KVTIER_ABORT_ON_CHECK
  std::fprintf(stderr, "kvtier: %s\n", text.c_str());
  std::abort();
#endif
  throw InternalError(text);
}

}  // namespace kvtier
