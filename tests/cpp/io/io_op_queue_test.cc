// IoOpQueue and ChunkedTransfer: order, limits, what is joined, and how it is cut.
#include "io/io_op_queue.h"

#include <doctest/doctest.h>

#include <utility>

#include "io/chunked_transfer.h"

namespace kvtier::testing {
namespace {

IoOp op_at(std::span<std::byte> bytes, std::uint64_t offset_bytes, std::uint64_t user_data = 0,
           IoKind kind = IoKind::kRead, int fd = 3) {
  IoOp op;
  op.kind = kind;
  op.fd = fd;
  op.offset_bytes = offset_bytes;
  op.pieces = {bytes};
  op.user_data = user_data;
  return op;
}

TEST_CASE("neighbours in a file are joined in order, others are not") {
  std::vector<std::byte> bytes(64 * 1024);
  const auto part = [&](std::size_t i) { return std::span(bytes).subspan(i * 4096, 4096); };
  IoOpQueue queue{IoLimits{4, 4}};
  queue.push(op_at(part(0), 4096, 0));
  queue.push(op_at(part(1), 8192, 1));
  queue.push(op_at(part(5), 12288, 2));
  queue.push(op_at(part(6), 20480, 3));                     // A gap.
  queue.push(op_at(part(7), 24576, 4, IoKind::kRead, 4));   // Another file.
  queue.push(op_at(part(8), 28672, 5, IoKind::kWrite, 4));  // Another direction.
  auto first = queue.take();
  REQUIRE(first);
  CHECK(first->ops.size() == 3);
  CHECK(first->length_bytes == 3 * 4096);
  // Two of the three lie side by side in memory too.
  const auto pieces = first->pieces();
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].size() == 8192);
  CHECK(pieces[1].data() == part(5).data());
  for (std::uint64_t expected = 3; expected < 6; ++expected) {
    const auto next = queue.take();
    REQUIRE(next);
    CHECK(next->ops.size() == 1);
    CHECK(next->ops.front().user_data == expected);
  }
  CHECK(queue.is_empty());
}

TEST_CASE("a joined transfer has a bound and a long op stays alone") {
  std::vector<std::byte> bytes(3 * kBatchBytesMax);
  IoOpQueue queue{IoLimits{4, 4}};
  constexpr std::uint64_t kPart = kBatchBytesMax / 4;
  for (std::uint64_t i = 0; i < 6; ++i) {
    queue.push(op_at(std::span(bytes).subspan(i * kPart, kPart), i * kPart, i));
  }
  queue.push(op_at(bytes, 6 * kPart, 6));
  CHECK(queue.take()->ops.size() == 4);
  CHECK(queue.take()->ops.size() == 2);
  const auto alone = queue.take();
  CHECK(alone->ops.size() == 1);
  CHECK(alone->length_bytes == bytes.size());
}

TEST_CASE("background work keeps within its limits and loads always go") {
  std::vector<std::byte> bytes(16);
  IoOpQueue queue{IoLimits{1, 2}};
  const auto push = [&](IoPriority priority, std::uint64_t offset_bytes) {
    IoOp op = op_at(bytes, offset_bytes);
    op.priority = priority;
    queue.push(std::move(op));
  };
  for (std::uint64_t i = 0; i < 3; ++i) push(IoPriority::kSave, 100 * i);
  CHECK(queue.take());
  CHECK_FALSE(queue.take());
  push(IoPriority::kControl, 1000);
  push(IoPriority::kControl, 2000);
  CHECK(queue.take()->priority() == IoPriority::kControl);
  CHECK_FALSE(queue.take());
  push(IoPriority::kLoad, 3000);
  CHECK(queue.take()->priority() == IoPriority::kLoad);
  queue.finish(IoPriority::kSave);
  CHECK(queue.take()->priority() == IoPriority::kControl);
  CHECK(queue.drain().size() == 2);
  CHECK(queue.is_empty());
}

TEST_CASE("chunks cover a transfer without gap or overlap and end on boundaries of the file") {
  std::vector<std::byte> bytes(5 * kBatchBytesMax + 123);
  for (const std::uint64_t offset_bytes :
       {std::uint64_t{0}, std::uint64_t{8192}, std::uint64_t{777}}) {
    CAPTURE(offset_bytes);
    IoBatch batch;
    IoOp op = op_at({}, offset_bytes);
    op.pieces.clear();
    const auto all = std::span(bytes);
    op.pieces = {all.first(1000), all.subspan(2000, 0), all.subspan(2000, 3 * kBatchBytesMax),
                 all.subspan(2000 + 3 * kBatchBytesMax)};
    batch.length_bytes = op.length_bytes();
    batch.ops.push_back(op);
    const std::uint64_t total_bytes = batch.length_bytes;
    ChunkedTransfer transfer(std::move(batch));
    std::uint64_t position_bytes = 0;
    std::vector<std::byte*> seen;
    while (transfer.has_next()) {
      ChunkedTransfer::Chunk chunk;
      transfer.take_next(chunk);
      CHECK(chunk.offset_bytes == offset_bytes + position_bytes);
      std::uint64_t sum_bytes = 0;
      for (const iovec& piece : chunk.pieces) sum_bytes += piece.iov_len;
      CHECK(sum_bytes == chunk.length_bytes);
      CHECK(chunk.length_bytes <= kBatchBytesMax);
      position_bytes += chunk.length_bytes;
      const bool is_last = position_bytes == total_bytes;
      CHECK((is_last || (offset_bytes + position_bytes) % 4096 == 0));
      CHECK_FALSE(transfer.is_ended());
    }
    CHECK(position_bytes == total_bytes);
  }
}

TEST_CASE("a transfer with a bad chunk hands out no more and ends when the others have") {
  std::vector<std::byte> bytes(4 * kBatchBytesMax);
  IoBatch batch;
  batch.ops.push_back(op_at(bytes, 0));
  batch.length_bytes = bytes.size();
  ChunkedTransfer transfer(std::move(batch));
  ChunkedTransfer::Chunk chunk;
  transfer.take_next(chunk);
  transfer.take_next(chunk);
  transfer.finish(false);
  CHECK_FALSE(transfer.has_next());
  CHECK_FALSE(transfer.is_ended());
  transfer.finish(true);
  CHECK(transfer.is_ended());
  CHECK_FALSE(transfer.is_good());
}

}  // namespace
}  // namespace kvtier::testing
