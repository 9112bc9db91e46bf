// The transfer loop against kernel calls that interrupt, shorten, refuse and end early.
#include "io/transfer_loop.h"

#include <doctest/doctest.h>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "testing/payload.h"

namespace kvtier::testing {
namespace {

/// A file in memory behind kernel calls whose behaviour a test writes.
class FakeFile {
 public:
  /// Called before each transfer with its offset and length: a number of bytes to move (cut to what
  /// is there), or minus an errno.
  std::function<std::int64_t(std::uint64_t offset_bytes, std::uint64_t length_bytes)> rule =
      [](std::uint64_t, std::uint64_t length_bytes) {
        return static_cast<std::int64_t>(length_bytes);
      };
  std::vector<std::byte> bytes;
  int num_calls = 0;
  TimeNs paused_ns = 0;

  SystemCalls calls() {
    SystemCalls calls;
    calls.preadv = [this](int, const iovec* pieces, int num_pieces, off_t offset_bytes) {
      return transfer(true, pieces, num_pieces, static_cast<std::uint64_t>(offset_bytes));
    };
    calls.pwritev = [this](int, const iovec* pieces, int num_pieces, off_t offset_bytes) {
      return transfer(false, pieces, num_pieces, static_cast<std::uint64_t>(offset_bytes));
    };
    calls.fdatasync = [this](int) {
      ++num_calls;
      const std::int64_t answer = rule(0, 0);
      if (answer >= 0) return 0;
      errno = static_cast<int>(-answer);
      return -1;
    };
    calls.pause = [this](TimeNs duration_ns) { paused_ns += duration_ns; };
    return calls;
  }

 private:
  ssize_t transfer(bool is_read, const iovec* pieces, int num_pieces, std::uint64_t offset_bytes) {
    ++num_calls;
    CHECK(num_pieces > 0);
    CHECK(num_pieces <= 1024);
    std::uint64_t length_bytes = 0;
    for (int index = 0; index < num_pieces; ++index) length_bytes += pieces[index].iov_len;
    CHECK(length_bytes <= kCallBytesMax);
    const std::int64_t answer = rule(offset_bytes, length_bytes);
    if (answer < 0) {
      errno = static_cast<int>(-answer);
      return -1;
    }
    std::uint64_t left_bytes =
        std::min<std::uint64_t>(static_cast<std::uint64_t>(answer), length_bytes);
    if (is_read) {
      left_bytes = std::min<std::uint64_t>(
          left_bytes, bytes.size() - std::min<std::uint64_t>(offset_bytes, bytes.size()));
    } else if (offset_bytes + left_bytes > bytes.size()) {
      bytes.resize(offset_bytes + left_bytes);
    }
    const auto moved_bytes = static_cast<ssize_t>(left_bytes);
    std::byte* place = bytes.data() + offset_bytes;
    for (int index = 0; index < num_pieces && left_bytes > 0; ++index) {
      const std::size_t taken = std::min<std::size_t>(pieces[index].iov_len, left_bytes);
      auto* memory = static_cast<std::byte*>(pieces[index].iov_base);
      if (is_read) std::copy_n(place, taken, memory);
      if (!is_read) std::copy_n(memory, taken, place);
      place += taken;
      left_bytes -= taken;
    }
    return moved_bytes;
  }
};

struct Fixture {
  FakeFile file;
  std::vector<std::byte> memory;

  explicit Fixture(std::size_t length_bytes) : memory(length_bytes) {
    file.bytes = make_payload({1, 0}, length_bytes);
  }

  std::vector<std::span<std::byte>> pieces(std::size_t piece_bytes) {
    std::vector<std::span<std::byte>> pieces;
    for (std::span<std::byte> left = memory; !left.empty();) {
      pieces.push_back(left.first(std::min(piece_bytes, left.size())));
      left = left.subspan(pieces.back().size());
    }
    return pieces;
  }

  TransferOutcome read(std::size_t piece_bytes = 1000) {
    return transfer_pieces(file.calls(), TransferDirection::kRead, 3, 0, pieces(piece_bytes));
  }
};

TEST_CASE("interrupted calls are made again") {
  Fixture fixture(100'000);
  fixture.file.rule = [&](std::uint64_t, std::uint64_t) -> std::int64_t {
    if (fixture.file.num_calls % 10 == 0) return -EINTR;
    return 1234;
  };
  const TransferOutcome outcome = fixture.read();
  CHECK(outcome.status.is_ok());
  CHECK(outcome.transferred_bytes == 100'000);
  CHECK(are_equal(fixture.memory, fixture.file.bytes));
}

TEST_CASE("calls that stay interrupted give up") {
  Fixture fixture(100);
  fixture.file.rule = [](std::uint64_t, std::uint64_t) -> std::int64_t { return -EINTR; };
  CHECK(fixture.read().status.os_errno() == EINTR);
  CHECK(fixture.file.num_calls == kInterruptedRetriesMax + 1);
  CHECK(sync_data(fixture.file.calls(), 3).os_errno() == EINTR);
}

TEST_CASE("calls that would block are made again after growing pauses") {
  Fixture fixture(4096);
  fixture.file.rule = [&](std::uint64_t, std::uint64_t) -> std::int64_t {
    return fixture.file.num_calls < 5 ? -EAGAIN : 4096;
  };
  CHECK(fixture.read().status.is_ok());
  CHECK(fixture.file.paused_ns == (50 + 100 + 200 + 400) * kNsPerUs);
  fixture.file.rule = [](std::uint64_t, std::uint64_t) -> std::int64_t { return -EAGAIN; };
  CHECK(fixture.read().status.os_errno() == EAGAIN);
  CHECK(fixture.file.paused_ns < kNsPerS);
}

TEST_CASE("short transfers continue at the right byte of the right piece") {
  for (const std::uint64_t step_bytes :
       {1ull, 13ull, 512ull, 999ull, 1000ull, 1001ull, 4095ull, 4096ull, 4097ull, 6000ull}) {
    CAPTURE(step_bytes);
    Fixture fixture(20'000);
    Random random(step_bytes);
    fixture.file.rule = [&](std::uint64_t, std::uint64_t) {
      return static_cast<std::int64_t>(random.between(1, step_bytes));
    };
    CHECK(fixture.read(777).status.is_ok());
    CHECK(are_equal(fixture.memory, fixture.file.bytes));
    // Back into an empty file.
    Fixture other(0);
    other.file.rule = fixture.file.rule;
    const auto pieces = fixture.pieces(333);
    CHECK(transfer_pieces(other.file.calls(), TransferDirection::kWrite, 3, 5, pieces)
              .status.is_ok());
    CHECK(are_equal(std::span(other.file.bytes).subspan(5), fixture.memory));
  }
}

TEST_CASE("a short write that cannot go on says how far it came") {
  Fixture fixture(8192);
  FakeFile full;
  // As a file-size limit of 6000 bytes.
  full.rule = [](std::uint64_t offset_bytes, std::uint64_t length_bytes) -> std::int64_t {
    if (offset_bytes >= 6000) return -EFBIG;
    return static_cast<std::int64_t>(std::min<std::uint64_t>(length_bytes, 6000 - offset_bytes));
  };
  const TransferOutcome outcome =
      transfer_pieces(full.calls(), TransferDirection::kWrite, 3, 0, fixture.pieces(8192));
  CHECK(outcome.status.os_errno() == EFBIG);
  CHECK(outcome.transferred_bytes == 6000);
  CHECK(outcome.status.message().find("want_bytes=8192 got_bytes=6000") != std::string::npos);
}

TEST_CASE("a direct read that stops on a sector resumes at an aligned place") {
  Fixture fixture(64 * 1024);
  fixture.file.rule = [](std::uint64_t offset_bytes, std::uint64_t) -> std::int64_t {
    if (offset_bytes % 4096 != 0) return -EINVAL;
    return 4096 * 3 + 512;
  };
  CHECK(fixture.read(64 * 1024).status.is_ok());
  CHECK(are_equal(fixture.memory, fixture.file.bytes));
}

TEST_CASE("a direct read of a file that ends inside a page is an early end and no bad argument") {
  Fixture fixture(8192);
  fixture.file.bytes.resize(4096 + 700);
  fixture.file.rule = [](std::uint64_t offset_bytes, std::uint64_t length_bytes) -> std::int64_t {
    if (offset_bytes % 512 != 0) return -EINVAL;
    return static_cast<std::int64_t>(length_bytes);
  };
  const TransferOutcome outcome = fixture.read(8192);
  CHECK(outcome.status.code() == StatusCode::kIoError);
  CHECK(outcome.status.os_errno() == 0);
  CHECK(outcome.transferred_bytes == 4096 + 700);
  CHECK(fixture.file.num_calls <= 3);
}

TEST_CASE("other failures are reported at once with their errno") {
  for (const int os_errno : {EIO, EINVAL, ENOSPC, EBADF}) {
    Fixture fixture(4096);
    fixture.file.rule = [os_errno](std::uint64_t, std::uint64_t) -> std::int64_t {
      return -os_errno;
    };
    const TransferOutcome outcome = fixture.read();
    CHECK(outcome.status.os_errno() == os_errno);
    CHECK(outcome.transferred_bytes == 0);
    CHECK(fixture.file.num_calls == 1);
  }
}

TEST_CASE("no bytes before the end are an error without an errno") {
  Fixture fixture(4096);
  fixture.file.rule = [](std::uint64_t, std::uint64_t) -> std::int64_t { return 0; };
  CHECK(fixture.read().status.code() == StatusCode::kIoError);
  CHECK(fixture.read().status.os_errno() == 0);
  FakeFile full;
  full.rule = fixture.file.rule;
  const TransferOutcome written =
      transfer_pieces(full.calls(), TransferDirection::kWrite, 3, 0, fixture.pieces(4096));
  CHECK(written.status.code() == StatusCode::kIoError);
  CHECK(written.status.os_errno() == 0);
}

TEST_CASE("an op of more than 2 GiB is cut where the kernel would cut it") {
  constexpr std::uint64_t kOpBytes = 2'362'232'012;  // 2.2 GiB, no multiple of anything.
  // Reserved addresses that nobody touches.
  void* memory =
      ::mmap(nullptr, kOpBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> transfers;
  SystemCalls calls = real_system_calls();
  calls.pwritev = [&](int, const iovec* pieces, int num_pieces, off_t offset_bytes) {
    REQUIRE(num_pieces == 1);
    CHECK(static_cast<std::byte*>(pieces[0].iov_base) ==
          static_cast<std::byte*>(memory) + (offset_bytes - 4096));
    transfers.emplace_back(static_cast<std::uint64_t>(offset_bytes), pieces[0].iov_len);
    return static_cast<ssize_t>(pieces[0].iov_len);
  };
  const std::span<std::byte> piece(static_cast<std::byte*>(memory), kOpBytes);
  const TransferOutcome outcome =
      transfer_pieces(calls, TransferDirection::kWrite, 3, 4096, {&piece, 1});
  ::munmap(memory, kOpBytes);
  CHECK(outcome.status.is_ok());
  CHECK(outcome.transferred_bytes == kOpBytes);
  using Transfers = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  CHECK(transfers ==
        Transfers{{4096, kCallBytesMax}, {4096 + kCallBytesMax, kOpBytes - kCallBytesMax}});
}

}  // namespace
}  // namespace kvtier::testing
