// Taking a directory's lock with patience. Blocking; thread-safe as far as Directory is.
#pragma once

#include <string>

#include "base/clock.h"
#include "io/directory.h"

namespace kvtier {

/// Directory::lock, tried again for up to `wait_ns` while another process holds it.
Status lock_directory(Directory& directory, Clock& clock, const std::string& name,
                      const std::string& text, TimeNs wait_ns);

}  // namespace kvtier
