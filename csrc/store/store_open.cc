// Opening a store: options, arenas, directory, recovery. One thread.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "store/store_impl.h"

namespace kvtier {
namespace {

constexpr std::uint64_t kBacklogBytesMax = 256ull << 20;
constexpr std::uint32_t kOpenFilesMax = 128;
constexpr std::uint64_t kAllowanceBytesMin = 64ull << 10;
constexpr std::uint64_t kAllowanceBytesMax = 4ull << 20;

/// Descriptors for segment files: a quarter of what the process may open, at most kOpenFilesMax.
std::uint32_t choose_open_files_max() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOpenFilesMax;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(limit.rlim_cur / 4, 8, kOpenFilesMax));
}

/// What a smaller cap gives up is a cache's loss; whoever waits for the open is an engine.
constexpr TimeNs kMoveOnOpenNs = 30 * kNsPerS;

}  // namespace

Store::Impl::Impl(const StoreOptions& options, StoreSeams seams)
    : options_(options),
      seams_(std::move(seams)),
      index_(std::clamp<std::uint64_t>(options.blocks_max, 1, store::kNoEntry - 1)),
      host_space_(index_, kHost),
      disk_space_(index_, kDisk),
      life_(index_, host_space_, disk_space_),
      leases_(life_),
      host_copies_(*seams_.clock) {
  choose_policies();
}

Status Store::Impl::check_options() const {
  if (options_.host_bytes == 0 && options_.path.empty()) {
    return Status(StatusCode::kConfig, "a store needs a tier: give host_bytes or path");
  }
  if (options_.host_bytes > 0 && options_.host_bytes < 4096) {
    return Status(StatusCode::kConfig, "host_bytes is too small: host_bytes=" +
                                           std::to_string(options_.host_bytes) + " at least 4096");
  }
  if (options_.blocks_max == 0 || options_.blocks_max >= store::kNoEntry) {
    return Status(StatusCode::kConfig,
                  "blocks_max is out of range: blocks_max=" + std::to_string(options_.blocks_max));
  }
  if (options_.path.empty()) return Status::ok();
  constexpr std::uint64_t kDiskBytesMin = 1u << 20;
  if (options_.disk_bytes < kDiskBytesMin) {
    return Status(StatusCode::kConfig,
                  "disk_bytes is too small: disk_bytes=" + std::to_string(options_.disk_bytes) +
                      " at least " + std::to_string(kDiskBytesMin));
  }
  constexpr std::uint64_t kStagingBytesMin = 64u << 10;
  if (options_.staging_bytes < kStagingBytesMin) {
    return Status(StatusCode::kConfig, "staging_bytes is too small: staging_bytes=" +
                                           std::to_string(options_.staging_bytes) + " at least " +
                                           std::to_string(kStagingBytesMin));
  }
  return Status::ok();
}

Status Store::Impl::open() {
  if (Status checked = check_options(); !checked.is_ok()) return checked;
  if (options_.publish_interval_ns > 0 && seams_.directory) {
    const TimeNs now_ns = seams_.clock->now_ns();
    publisher_ = std::make_unique<store::LivePublisher>(*seams_.directory,
                                                        options_.publish_interval_ns, now_ns);
    if (!seams_.io_note.empty()) publisher_->note_line("warning", seams_.io_note, now_ns);
  }
  if (Status opened = open_arenas(); !opened.is_ok()) return opened;
  warn_of_small_tier();
  store::RecoveryReport report;
  if (!options_.path.empty()) {
    if (Status opened = open_directory(); !opened.is_ok()) return opened;
    if (Status opened = open_disk(); !opened.is_ok()) return opened;
    if (Status recovered = recover_disk(report); !recovered.is_ok()) return recovered;
  }
  if (seams_.io_engine) {
    seams_.io_engine->set_on_result([executor = seams_.executor] { executor->wake(); });
    seams_.io_engine->register_memory({host_->arena()->base(), host_->arena()->num_bytes()});
    seams_.io_engine->register_memory({staging_->arena()->base(), staging_->arena()->num_bytes()});
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
  }
  seams_.executor->start([this] {
    try {
      return pump();
    } catch (const std::exception& error) {
      fail(error.what());
      return kNeverNs;
    }
  });
  prefault(Locked(*this));
  Status shrunk = finish_shrink(report);
  hand_over_log();
  return shrunk;
}

/// Begins to provide memory somewhat ahead of its use: not all of it, as it may never be used.
/// Where the first GPU decides on which node it lies, it has to be seen before.
void Store::Impl::prefault(const Locked&) {
  if (options_.prefault_bytes == 0 || numa_->is_near_pending()) return;
  const auto ahead_of = [](const Arena& arena, std::uint64_t share_bytes) {
    return std::min(arena.num_bytes() / 4, share_bytes);
  };
  const std::uint64_t staging_share_bytes = staging_ ? options_.prefault_bytes / 4 : 0;
  host_->prefault(seams_.executor,
                  ahead_of(*host_->arena(), options_.prefault_bytes - staging_share_bytes));
  if (!staging_) return;
  staging_->prefault(seams_.executor, ahead_of(*staging_->arena(), staging_share_bytes));
}

Result<std::vector<HostMemory>> Store::Impl::host_memory() {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  std::vector<HostMemory> memory;
  const auto add = [&memory](const std::shared_ptr<Arena>& arena) {
    if (arena->num_bytes() > 0) memory.push_back({arena->bytes(0, arena->num_bytes()), arena});
  };
  add(host_->arena());
  if (staging_) add(staging_->arena());
  return memory;
}

Status Store::Impl::place_near(const std::string& pci_address) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  std::vector<std::span<std::byte>> memories;
  for (const auto& arena : {host_->arena(), staging_ ? staging_->arena() : nullptr}) {
    if (arena) memories.push_back(arena->bytes(0, arena->num_bytes()));
  }
  const bool was_refused = !numa_->refusal().empty();
  if (numa_->place_near(pci_address, memories)) {
    log("info",
        "host memory that is taken from now on lies next to the first GPU: numa=" + numa_->text());
  }
  prefault(locked);
  if (!was_refused) warn_of_numa_refusal();
  return Status::ok();
}

void Store::Impl::warn_of_numa_refusal() {
  if (numa_->refusal().empty()) return;
  log("warning", "host memory lies on whichever NUMA nodes the kernel takes: " + numa_->refusal() +
                     "; let the process call mbind (containers: CAP_SYS_NICE), or set numa=off");
}

Result<std::vector<std::shared_ptr<const Arena>>> Store::Impl::shared_arenas() {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (!options_.is_arena_shared || !host_->is_present()) {
    return Status(StatusCode::kConfig,
                  "no other process can reach this store's memory: open it with a host tier and "
                  "shared_arena=True");
  }
  std::vector<std::shared_ptr<const Arena>> arenas{host_->arena()};
  if (staging_ && staging_->arena()->is_shared()) arenas.push_back(staging_->arena());
  return arenas;
}

Status Store::Impl::open_arenas() {
  const ArenaKind kind = options_.is_arena_shared ? ArenaKind::kShared : ArenaKind::kPrivate;
  auto policy = NumaPolicy::create(options_.numa, seams_.numa);
  if (!policy.is_ok()) return policy.status();
  numa_ = std::move(policy).value();
  auto arena = Arena::create(options_.host_bytes, kind);
  if (!arena.is_ok()) return arena.status();
  // Before anything touches it.
  numa_->place(arena.value()->bytes(0, arena.value()->num_bytes()));
  host_ = std::make_unique<store::HostTier>(life_, host_space_, std::move(arena).value(),
                                            options_.host_bytes);
  if (!options_.path.empty()) {
    auto staging = Arena::create(options_.staging_bytes, kind);
    if (!staging.is_ok()) return staging.status();
    numa_->place(staging.value()->bytes(0, staging.value()->num_bytes()));
    staging_ = std::make_unique<store::StagingPool>(std::move(staging).value());
  }
  warn_of_numa_refusal();
  return Status::ok();
}

Status Store::Impl::open_directory() {
  Directory& directory = *seams_.directory;
  store_directory_ = std::make_unique<disk::StoreDirectory>(directory);
  Status locked = store_directory_->lock(*seams_.clock, options_.lock_wait_ns);
  if (locked.code() == StatusCode::kBusy) {
    return Status(StatusCode::kBusy, "the directory is in use: path=" + directory.path() +
                                         " holder=" + locked.message());
  }
  if (!locked.is_ok()) return locked;
  if (options_.direct == DirectMode::kOff) {
    direct_probe_.alignment = directory.direct_alignment();
    direct_probe_.reason = "switched off by the setting direct=off";
  } else {
    direct_probe_ = disk::probe_direct(directory);
    if (!direct_probe_.is_direct && options_.direct == DirectMode::kOn) {
      return Status(StatusCode::kConfig, "direct=on, but direct I/O does not work here: path=" +
                                             directory.path() + ": " + direct_probe_.reason);
    }
    if (!direct_probe_.is_direct) {
      log("warning", "disk I/O is buffered, not direct: " + direct_probe_.reason);
    }
  }
  const DirectAlignment& alignment = direct_probe_.alignment;
  const std::uint32_t io_bytes = std::max(alignment.memory_bytes, alignment.offset_bytes);
  small_alignment_bytes_ = std::max<std::uint32_t>(512, io_bytes);
  alignment_bytes_ = std::max({4096u, io_bytes, directory.file_system_block_bytes()});
  return store_directory_->load();
}

Status Store::Impl::open_disk() {
  disk::DiskEngineOptions engine_options;
  engine_options.is_direct = direct_probe_.is_direct;
  engine_options.open_files_max = choose_open_files_max();
  engine_ = std::make_unique<disk::DiskEngine>(*seams_.directory, *seams_.io_engine, *seams_.clock,
                                               engine_options);
  store::DiskTierOptions tier_options;
  tier_options.cap_bytes = options_.disk_bytes;
  // Some room for namespaces to come is kept from the segments: a full tier could not take one
  // else.
  tier_options.allowance_bytes =
      std::clamp(options_.disk_bytes / 64, kAllowanceBytesMin, kAllowanceBytesMax);
  tier_options.alignment_bytes = alignment_bytes_;
  tier_options.stall_ns = options_.stall_ns;
  disk_ = std::make_unique<store::DiskTier>(
      life_, disk_space_, *engine_, *seams_.clock, tier_options,
      [this](const char* level, const std::string& text) { log(level, text); });
  disk_->commits().length_bytes_of = [this](std::uint32_t namespace_index) {
    return static_cast<std::uint32_t>(namespaces_.at(namespace_index).block_bytes);
  };
  const std::uint64_t backlog_bytes_max = options_.host_bytes > 0
                                              ? std::min(kBacklogBytesMax, options_.host_bytes / 2)
                                              : kBacklogBytesMax;
  writes_ = std::make_unique<store::WriteBehind>(life_, *host_, *disk_, *engine_, namespaces_,
                                                 *admission_, backlog_bytes_max);
  loader_ = std::make_unique<store::Loader>(life_, *disk_, *engine_, *staging_, *seams_.clock);
  return Status::ok();
}

Status Store::Impl::recover_disk(store::RecoveryReport& report) {
  const TimeNs start_ns = seams_.clock->now_ns();
  stats_.is_recovered_clean =
      store_directory_->superblock().is_clean || store_directory_->is_fresh();
  disk_->set_store_id(store_directory_->superblock().store_id);
  store::RecoveryContext context{
      *seams_.directory,
      *store_directory_,
      life_,
      *disk_,
      namespaces_,
      options_.eviction == EvictionMode::kAdaptive ? &history_ : nullptr,
      [this](const char* level, const std::string& text) { log(level, text); },
      *seams_.clock,
      start_ns + kMoveOnOpenNs,
      stats_.is_recovered_clean};
  // Written before anything else is: from here on an end without close() is an unclean one.
  const std::uint64_t generation_max = store_directory_->superblock().generation_max;
  if (Status saved = store_directory_->save_superblock(false, generation_max); !saved.is_ok()) {
    return saved;
  }
  disk_->set_fixed_bytes(
      std::max(store_directory_->fixed_bytes(), disk_->options().allowance_bytes));
  auto recovered = store::recover(context);
  if (!recovered.is_ok()) return recovered.status();
  report = recovered.value();
  uses_bytes_max_ = report.uses_bytes_max;
  has_uses_file_ = store_directory_->uses_bytes() > 0;
  stats_.recovered_blocks = report.num_blocks;
  stats_.recover_damaged_entries = report.num_damaged_entries;
  stats_.unknown_files = report.num_unknown_files;
  stats_.unknown_file_bytes = report.unknown_bytes;
  stats_.recover_s =
      static_cast<double>(seams_.clock->now_ns() - start_ns) / static_cast<double>(kNsPerS);
  if (report.num_unknown_files > 0) {
    log("warning",
        "left alone files of other format versions, their bytes count against "
        "disk_bytes: num_files=" +
            std::to_string(report.num_unknown_files) +
            " bytes=" + std::to_string(report.unknown_bytes));
  }
  if (report.num_removed_files > 0) {
    log("warning", "removed damaged or foreign segment files: num_files=" +
                       std::to_string(report.num_removed_files));
  }
  return Status::ok();
}

/// Gives the space of emptied segments back, after the blocks that were moved out of them are
/// durable.
Status Store::Impl::finish_shrink(const store::RecoveryReport& report) {
  if (report.segments_to_leave.empty()) return Status::ok();
  Locked locked(*this);
  const TimeNs deadline_ns = seams_.clock->now_ns() + options_.default_timeout_ns;
  Status durable = commit_and_sync(locked, deadline_ns);
  if (!durable.is_ok()) return durable;
  for (const std::uint16_t segment_index : report.segments_to_leave) disk_->leave(segment_index);
  seams_.executor->wake();
  const bool is_done = wait(locked, [this] { return disk_->num_segment_jobs() == 0; }, deadline_ns);
  if (!is_done) return Status(StatusCode::kTimeout, "the disk did not finish in time");
  return disk_->last_removal_failure();
}

}  // namespace kvtier
