// Arena handover: how a process gets the descriptors of another one's shared arenas: from a socket
// that is nowhere in the file system, or from the system's list of that process's descriptors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "memory/arena.h"

namespace kvtier {

/// Where a shared arena is to be had: plain values for another process.
struct ArenaPlace {
  ArenaId id;
  std::uint64_t num_bytes = 0;
  std::int64_t process_id = 0;
  int fd = -1;              // The descriptor's number in that process.
  Digest128 socket_number;  // Makes the socket's name; zero: there is none.
};

/// Gives descriptors to processes of the same user (or root) that know an arena's id. Thread-safe.
class ArenaServer {
 public:
  /// Starts its thread. The arenas stay mapped while it lives. kIoError, kExhausted.
  static Result<std::unique_ptr<ArenaServer>> start(
      std::vector<std::shared_ptr<const Arena>> arenas);

  ~ArenaServer();
  ArenaServer(const ArenaServer&) = delete;
  ArenaServer& operator=(const ArenaServer&) = delete;

  /// One an arena, in the order given.
  std::vector<ArenaPlace> places() const;
  /// In a forked child, which has no thread of it: nobody shall wait for an answer there.
  void close_after_fork();

 private:
  ArenaServer() = default;
  void run();
  void answer(int connection) const;

  // Constant after start(), but for close_after_fork().
  std::vector<std::shared_ptr<const Arena>> arenas_;
  Digest128 socket_number_;
  int listener_ = -1;
  int stop_event_ = -1;
  pid_t owner_pid_ = 0;
  std::thread thread_;
};

/// Maps the arena at that place: asks its socket, then the system. Blocks for at most a few
/// seconds. kInvalidArgument: what is there is another arena; kIoError when no way leads there,
/// with what each said and the remedy.
Result<std::unique_ptr<Arena>> open_arena(const ArenaPlace& place);

}  // namespace kvtier
