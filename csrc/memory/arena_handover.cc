// Descriptors over a socket, and from the list in /proc (Linux). Thread safety: see the header.
#include "memory/arena_handover.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"

namespace kvtier {
namespace {

// One that connects and says nothing, or a process that hangs, holds up the others so long.
constexpr timeval kPatience{2, 0};
constexpr int kListenMax = 128;

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// The first character is NUL: such a name is in no folder and goes with its last socket.
SocketName socket_name(const Digest128& number) {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  const std::string text = "kvtier-arena-" + number.to_hex();
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

void set_patience(int socket) {
  (void)::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
}

bool is_allowed(int connection) {
  ucred asker{};
  socklen_t length = sizeof asker;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &asker, &length) != 0) return false;
  return asker.uid == ::geteuid() || asker.uid == 0;
}

/// One byte with a descriptor, or without: there is no such arena.
struct Message {
  explicit Message(char answer) : byte(answer) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
  }
  void attach_space() {
    header.msg_control = space.data();
    header.msg_controllen = space.size();
  }

  char byte;
  iovec part{&byte, 1};
  msghdr header{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
};

void send_descriptor(int connection, int fd) {
  Message message(fd >= 0 ? 'y' : 'n');
  if (fd >= 0) {
    message.attach_space();
    cmsghdr* control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  }
  // Who does not take it has ended, and needs nothing.
  (void)::sendmsg(connection, &message.header, MSG_NOSIGNAL);
}

Result<int> receive_descriptor(int connection) {
  Message message('?');
  message.attach_space();
  const ssize_t num_read = ::recvmsg(connection, &message.header, MSG_CMSG_CLOEXEC);
  if (num_read < 0) return Status::from_errno(errno, "no answer");
  if (num_read == 0) return Status(StatusCode::kIoError, "it refused this user", EACCES);
  const cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) {
    return Status(StatusCode::kIoError, "it has no such arena", ENOENT);
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
  return fd;
}

Result<int> ask_socket(const ArenaPlace& place) {
  if (place.socket_number.is_zero()) return Status(StatusCode::kIoError, "there is none", ENOENT);
  const int connection = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connection < 0) return Status::from_errno(errno, "socket");
  set_patience(connection);
  const SocketName name = socket_name(place.socket_number);
  auto answer = [&]() -> Result<int> {
    if (::connect(connection, name.pointer(), name.length) != 0) {
      return Status::from_errno(errno, "connect");
    }
    // The id is what proves an arena: only the store's user may learn it.
    if (!is_allowed(connection)) return Status(StatusCode::kIoError, "another user's", EACCES);
    const auto& id = place.id.bytes;
    if (::send(connection, id.data(), id.size(), MSG_NOSIGNAL) < 0) {
      return Status::from_errno(errno, "send");
    }
    return receive_descriptor(connection);
  }();
  ::close(connection);
  return answer;
}

Result<int> ask_system(const ArenaPlace& place) {
  const std::string path =
      "/proc/" + std::to_string(place.process_id) + "/fd/" + std::to_string(place.fd);
  // Whatever else is there by now must not hold this process up.
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Status::from_errno(errno, path);
  return fd;
}

Result<std::unique_ptr<Arena>> take_over(int fd, const ArenaPlace& place) {
  auto arena = Arena::open_shared(fd, place.id, place.num_bytes);
  ::close(fd);
  return arena;
}

}  // namespace

Result<std::unique_ptr<ArenaServer>> ArenaServer::start(
    std::vector<std::shared_ptr<const Arena>> arenas) {
  std::unique_ptr<ArenaServer> server(new ArenaServer());
  server->arenas_ = std::move(arenas);
  server->owner_pid_ = ::getpid();
  auto number = make_arena_id();
  if (!number.is_ok()) return number.status();
  server->socket_number_ = number.value();
  server->stop_event_ = ::eventfd(0, EFD_CLOEXEC);
  server->listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const SocketName name = socket_name(server->socket_number_);
  if (server->stop_event_ < 0 || server->listener_ < 0 ||
      ::bind(server->listener_, name.pointer(), name.length) != 0 ||
      ::listen(server->listener_, kListenMax) != 0) {
    return Status::from_errno(errno, "cannot make the socket that hands arenas over");
  }
  const BlockedSignals blocked;
  try {
    server->thread_ = std::thread([it = server.get()] { it->run(); });
  } catch (const std::system_error& error) {
    return Status::from_errno(error.code().value(), "cannot start thread");
  }
  pthread_setname_np(server->thread_.native_handle(), "kvtier-arena");
  return server;
}

ArenaServer::~ArenaServer() {
  if (owner_pid_ != ::getpid()) {
    // Its thread is in the parent: neither to be joined nor to be missed.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  if (thread_.joinable()) {
    (void)::eventfd_write(stop_event_, 1);
    thread_.join();
  }
  if (listener_ >= 0) ::close(listener_);
  if (stop_event_ >= 0) ::close(stop_event_);
}

std::vector<ArenaPlace> ArenaServer::places() const {
  std::vector<ArenaPlace> places;
  for (const auto& arena : arenas_) {
    places.push_back({arena->id(), arena->num_bytes(), owner_pid_, arena->fd(), socket_number_});
  }
  return places;
}

void ArenaServer::close_after_fork() {
  if (listener_ >= 0) ::close(listener_);
  if (stop_event_ >= 0) ::close(stop_event_);
  listener_ = stop_event_ = -1;
}

void ArenaServer::run() {
  while (true) {
    std::array<pollfd, 2> waited{{{stop_event_, POLLIN, 0}, {listener_, POLLIN, 0}}};
    if (::poll(waited.data(), waited.size(), -1) < 0 && errno != EINTR) return;
    if (waited[0].revents != 0) return;
    if (waited[1].revents == 0) continue;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) {
      // No descriptor is free: the caller's second way is open still, and this one again later.
      if (errno == EMFILE || errno == ENFILE) (void)::poll(waited.data(), 1, 100);
      continue;
    }
    if (is_allowed(connection)) answer(connection);
    ::close(connection);
  }
}

void ArenaServer::answer(int connection) const {
  set_patience(connection);
  ArenaId wanted;
  const ssize_t num_read = ::recv(connection, wanted.bytes.data(), wanted.bytes.size(), 0);
  if (num_read != static_cast<ssize_t>(wanted.bytes.size())) return;
  const auto found = std::find_if(arenas_.begin(), arenas_.end(),
                                  [&wanted](const auto& arena) { return arena->id() == wanted; });
  send_descriptor(connection, found == arenas_.end() ? -1 : (*found)->fd());
}

Result<std::unique_ptr<Arena>> open_arena(const ArenaPlace& place) {
  auto from_socket = ask_socket(place);
  if (from_socket.is_ok()) return take_over(from_socket.value(), place);
  auto from_system = ask_system(place);
  if (from_system.is_ok()) return take_over(from_system.value(), place);
  return Status(StatusCode::kIoError,
                "cannot open arena of process " + std::to_string(place.process_id) +
                    ": its socket: " + from_socket.status().message() +
                    "; its descriptor: " + from_system.status().message() +
                    "; the store must be open, and this process of the same user and in the same "
                    "network namespace, or in the same process namespace and allowed to look at it",
                from_system.status().os_errno());
}

}  // namespace kvtier
