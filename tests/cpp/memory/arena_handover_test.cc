// Tests of handing arenas over between processes: by socket, by /proc, or with the reason why not.
#include "memory/arena_handover.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

struct Offer {
  Offer() {
    for (const std::uint64_t num_bytes : {2 * kMiB, std::uint64_t{8192}}) {
      auto arena = Arena::create(num_bytes, ArenaKind::kShared);
      REQUIRE_MESSAGE(arena.is_ok(), arena.status().to_string());
      arenas.push_back(std::move(arena).value());
    }
    auto started = ArenaServer::start({arenas.begin(), arenas.end()});
    REQUIRE_MESSAGE(started.is_ok(), started.status().to_string());
    server = std::move(started).value();
    places = server->places();
    REQUIRE(places.size() == 2);
  }
  std::vector<std::shared_ptr<Arena>> arenas;
  std::unique_ptr<ArenaServer> server;
  std::vector<ArenaPlace> places;
};

/// In another process: opens the place, checks `seen` there and writes `left`.
int open_in_child(const ArenaPlace& place, std::byte seen, std::byte left) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto opened = open_arena(place);
    if (!opened.is_ok()) ::_exit(1);
    std::byte* base = opened.value()->base();
    if (base[100] != seen) ::_exit(2);
    base[101] = left;
    ::_exit(0);
  }
  int wait_status = 0;
  REQUIRE(::waitpid(child, &wait_status, 0) == child);
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
}

TEST_CASE("another process maps the arena from the socket, and from /proc where there is none") {
  for (const bool has_socket : {true, false}) {
    CAPTURE(has_socket);
    Offer offer;
    for (std::size_t index = 0; index < 2; ++index) {
      ArenaPlace place = offer.places[index];
      // The way that is not tried must not be there.
      if (has_socket) place.fd = 9999;
      if (!has_socket) place.socket_number = Digest128{};
      offer.arenas[index]->base()[100] = std::byte{0x5a};
      CHECK(open_in_child(place, std::byte{0x5a}, std::byte{0x77}) == 0);
      CHECK(offer.arenas[index]->base()[101] == std::byte{0x77});
    }
  }
}

TEST_CASE("who does not know the id gets no arena") {
  const Offer offer;
  ArenaPlace place = offer.places[0];
  place.id.bytes[3] ^= 1;
  const auto opened = open_arena(place);
  REQUIRE_FALSE(opened.is_ok());
  CHECK(opened.status().code() == StatusCode::kInvalidArgument);
  CHECK(opened.status().message().find("another arena") != std::string::npos);
}

TEST_CASE("a descriptor of something else is refused") {
  const Offer offer;
  ArenaPlace place = offer.places[0];
  place.socket_number = Digest128{};
  place.fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto opened = open_arena(place);
  ::close(place.fd);
  REQUIRE_FALSE(opened.is_ok());
  CHECK(opened.status().message().find("not sealed memory") != std::string::npos);
}

TEST_CASE("when neither way leads there, both reasons and the remedy are named") {
  auto offer = std::make_unique<Offer>();
  ArenaPlace place = offer->places[0];
  place.fd = 9999;
  offer.reset();
  const auto opened = open_arena(place);
  REQUIRE_FALSE(opened.is_ok());
  CHECK(opened.status().code() == StatusCode::kIoError);
  CHECK(opened.status().os_errno() == ENOENT);
  const std::string& text = opened.status().message();
  CHECK(text.find("socket: connect") != std::string::npos);
  CHECK(text.find("/fd/9999") != std::string::npos);
  CHECK(text.find("same user") != std::string::npos);
}

TEST_CASE("F14: a server that accepts and never answers is given up in time") {
  Offer offer;
  ArenaPlace place = offer.places[0];
  place.fd = 9999;
  offer.server.reset();
  // Its name is free now: another listener of this process takes it, and says nothing.
  const std::string name = "kvtier-arena-" + place.socket_number.to_hex();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(listener >= 0);
  REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) == 0);
  REQUIRE(::listen(listener, 4) == 0);
  const auto started = std::chrono::steady_clock::now();
  const auto opened = open_arena(place);
  const auto waited = std::chrono::steady_clock::now() - started;
  ::close(listener);
  REQUIRE_FALSE(opened.is_ok());
  INFO(opened.status().message());
  CHECK(waited > std::chrono::milliseconds(100));  // It was this listener that was asked.
  CHECK(waited < std::chrono::seconds(10));
}

TEST_CASE("when the server has ended, the arena is still to be had by its descriptor") {
  Offer offer;
  offer.server.reset();
  CHECK(open_arena(offer.places[1]).is_ok());
  offer.places[1].fd = 9999;
  CHECK_FALSE(open_arena(offer.places[1]).is_ok());
}

}  // namespace
}  // namespace kvtier
