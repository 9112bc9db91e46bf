// What a transfer engine is asked and what it answers. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"
#include "transfer/ready_point.h"

namespace kvtier::transfer {

enum class TransferDirection : std::uint8_t {
  kSave,  // Device blocks to host slots.
  kLoad,  // Host slots to device blocks.
};
inline constexpr std::size_t kNumDirections = 2;

enum class TransferMethod : std::uint8_t {
  kCopyEngine,  // A copy for each run of fragments.
  kStaged,      // A kernel between fragments and a staging buffer, large copies beside it.
  kZeroCopy,    // A kernel between fragments and page-locked host memory.
  kAuto,        // Whichever is expected to be fastest.
};
inline constexpr std::size_t kNumMethods = 3;
const char* method_name(TransferMethod method);

using TransferJobId = std::uint64_t;  // 0 is none.
using AttachmentId = std::uint32_t;   // 0 is none.

struct TransferOptions {
  /// Harm budget: how many processors of the device the kernels of one direction may keep busy at a
  /// time. 2 .. 64. More: faster with small fragments, and slower kernels of the engine meanwhile.
  std::uint32_t max_ctas = 8;
  /// Saves keep out of the engine's way: the copy engine carries them where it is not much slower,
  /// and one kernel hashes what many copies move, instead of one a chunk.
  bool are_saves_gentle = false;
  /// Bytes of one staged copy at most; device memory for staging is four times this. 64 KiB ..
  /// 16 MiB. More: fewer calls and gaps on the link, and a longer wait for a job that is cancelled.
  std::uint64_t chunk_bytes = 16u << 20;
  /// File that keeps the calibration of this device and driver; empty: measured at each start.
  std::string calibration_path;
  /// Whether the methods are measured at the start; without, kAuto goes by general figures.
  bool is_calibrated = true;
  /// False: the caller drives advance() (tests, one thread).
  bool has_thread = true;
  /// Jobs that have not been polled. Beyond: kExhausted.
  std::uint32_t num_jobs_max = 1024;
};

struct TransferResult {
  TransferJobId job_id = 0;
  TransferDirection direction = TransferDirection::kSave;
  /// Ok: all blocks were moved, and those of a load are what was saved. kCorrupt: some of a load
  /// are not. kCancelled. Else what failed.
  Status status;
  /// Saves with seeds that are ok: uint64[num_blocks, num_parts].
  std::vector<std::uint64_t> checksums;
  /// Loads: the block ids whose device memory holds nothing to rely on.
  std::vector<std::int64_t> undefined_block_ids;
  TransferMethod method = TransferMethod::kAuto;  // As used; kAuto: none was.
  std::uint64_t moved_bytes = 0;
  TimeNs device_ns = 0;  // From the ready event to the last byte, by the device; 0: not measured.
};

struct TransferRequest {
  TransferDirection direction = TransferDirection::kSave;
  AttachmentId attachment_id = 0;
  /// int64[num_blocks], rows of the attached tensors; in a load each at most once.
  std::span<const std::int64_t> block_ids;
  /// [num_blocks], where each block's host order begins.
  std::span<std::byte* const> slots;
  /// The work on this stream so far comes first; not looked at when there is a ready point.
  StreamId stream;
  /// What comes first instead, taken earlier; several jobs may share it. See record_ready().
  std::shared_ptr<const ReadyPoint> ready;
  /// [num_blocks], their part index is not looked at; empty: no checksums.
  std::span<const ChecksumSeed> seeds;
  /// Loads with seeds: uint64[num_blocks, num_parts], what the bytes must sum up to.
  std::span<const std::uint64_t> checksums;
  TransferMethod method = TransferMethod::kAuto;
  /// Receives the result of an accepted job instead of poll() and take(), once, when its buffers
  /// are free; never when the device still holds them as the engine is destroyed. Called by the
  /// engine's thread, or by whoever drives advance() or close(), with none of the engine's mutexes
  /// held: it may call what does not block (submit(), cancel(), record_ready()), must not block
  /// itself, call advance(), wait() or close(), nor throw. The job is unknown by then.
  std::function<void(TransferResult)> on_result;
};

/// How far memory is that is page-locked in the background.
enum class HostMemoryState : std::uint8_t {
  kUnknown,  // Nobody asked for it, or it was removed.
  kPending,  // Slots in it work already, through the ring.
  kReady,
  kRefused,  // Slots in it go on working so.
};

struct HostMemoryInfo {
  HostMemoryState state = HostMemoryState::kUnknown;
  std::uint64_t locked_bytes = 0;
  Status refusal;  // Why, when it was.
};

struct TransferStats {
  std::uint64_t jobs[kNumDirections][kNumMethods] = {};
  std::uint64_t moved_bytes[kNumDirections][kNumMethods] = {};
  std::uint64_t failed_jobs = 0;
  std::uint64_t cancelled_jobs = 0;
  std::uint64_t corrupt_blocks = 0;
  std::uint64_t num_chunks = 0;
  TimeNs submit_ns = 0;  // Of the engine's own thread, in calls of the device.
  std::uint64_t staging_bytes = 0;
  std::uint64_t ring_bytes = 0;     // Page-locked, for slots that are not: taken when needed.
  std::uint64_t bounced_bytes = 0;  // What went through it.
  std::uint64_t page_locked_bytes = 0;
  std::uint64_t page_lock_pending_bytes = 0;  // Of memory that is being page-locked.
};

}  // namespace kvtier::transfer
