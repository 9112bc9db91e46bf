// How many CPUs this process may really use, for sizing thread pools. Free functions without
// state; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvtier {

/// CPUs that this process may use at once: its affinity, capped by the quotas of its control groups
/// (rounded up). At least 1. Reads a few files below /proc and the control groups' mounts.
std::uint32_t usable_cpus();

/// The smallest quota of this process's control groups and their ancestors, in CPUs, of either
/// version of control groups; nothing: no limit, or none that can be read.
/// root: put before every path that is read, so that tests can bring their own tree.
std::optional<double> cpu_quota(const std::string& root);

}  // namespace kvtier
