// SimDiskState: what the handles of one simulated disk share: files, names, space, faults and time.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "testing/sim_file.h"
#include "testing/sim_io_queue.h"
#include "testing/sim_world.h"

namespace kvtier::testing {

struct SimTransfer {
  Status status;
  std::uint64_t transferred_bytes = 0;
};

class SimDiskState {
 public:
  SimDiskState(SimClock& clock, const SimOptions& options)
      : clock_(clock),
        options_(options),
        random_(options.seed),
        capacity_bytes_(options.capacity_bytes) {}

  SimClock& clock() { return clock_; }
  const SimOptions& options() const { return options_; }
  SimFaults& faults() { return faults_; }
  bool is_stalled() const { return is_stalled_; }
  void set_stalled(bool is_stalled) { is_stalled_ = is_stalled; }
  void set_capacity_bytes(std::uint64_t capacity_bytes) { capacity_bytes_ = capacity_bytes; }
  /// Grows with each crash; a handle of an older generation is dead.
  std::uint64_t generation() const { return generation_; }
  std::map<std::string, std::vector<std::byte>>& files() { return files_; }
  std::uint64_t num_reads() const { return num_reads_; }
  std::uint64_t num_direct_refused() const { return num_direct_refused_; }
  std::uint64_t num_writes() const { return num_writes_; }
  std::uint64_t written_bytes() const { return written_bytes_; }

  // Names. As the calls of Directory; the handle has checked them and its own life.
  Result<int> open_file(const std::string& name, const OpenFlags& flags);
  void close_file(int fd);
  Status remove_file(const std::string& name);
  Status rename_file(const std::string& source, const std::string& target);
  std::vector<std::string> list_files();
  Result<FileStat> stat_file(const std::string& name);
  void sync_names();
  Status lock(const std::string& name, const std::string& text, const void* holder);
  void unlock(const void* holder);

  // Space.
  std::uint64_t allocated_bytes();
  std::uint64_t free_bytes();
  Status allocate(int fd, std::uint64_t offset_bytes, std::uint64_t length_bytes);
  Status truncate(int fd, std::uint64_t length_bytes);
  Result<FileStat> stat_fd(int fd);

  // Data, with faults.
  SimTransfer read(int fd, std::uint64_t offset_bytes,
                   std::span<const std::span<std::byte>> pieces);
  SimTransfer write(int fd, std::uint64_t offset_bytes,
                    std::span<const std::span<std::byte>> pieces);
  /// Two steps, because what is written while a sync runs need not be covered by it.
  SimSyncSnapshot begin_sync(int fd);
  Status finish_sync(int fd, const SimSyncSnapshot& snapshot);

  // Time.
  TimeNs op_duration_ns(TimeNs start_ns, const IoOp& op);
  void add_queue(std::shared_ptr<SimIoQueue> queue) { queues_.push_back(std::move(queue)); }
  void remove_queue(const SimIoQueue* queue);
  TimeNs next_event_ns() const;
  void run_due();
  std::uint64_t next_op_sequence() { return ++op_sequence_; }

  void crash(bool keeps_all);

 private:
  enum class NameChangeKind : std::uint8_t { kCreate, kRemove, kRename };
  // Since the last sync of the directory, in order: a power loss keeps a prefix, as journals do.
  struct NameChange {
    NameChangeKind kind;
    std::string name;
    std::string target;
    std::shared_ptr<SimFile> file;
  };
  struct Handle {
    std::shared_ptr<SimFile> file;
    bool is_direct = false;
  };
  struct Lock {
    const void* holder;
    std::string text;
  };
  using Names = std::map<std::string, std::shared_ptr<SimFile>>;

  void reconcile();
  void create_file(const std::string& name);
  void unlink(const std::string& name);
  const Handle* find_handle(int fd) const;
  std::vector<std::byte>& bytes_of(SimFile& file);
  bool is_aligned(const Handle& handle, std::uint64_t offset_bytes,
                  std::span<const std::span<std::byte>> pieces);
  std::uint64_t other_offset(std::uint64_t offset_bytes, std::uint64_t length_bytes,
                             std::uint64_t file_bytes);
  Status store_bytes(SimFile& file, std::uint64_t offset_bytes, std::span<const std::byte> source);
  void apply_interrupted_writes();
  void apply_interrupted_write(const IoOp& op);
  void lose_unsynced();
  SimIoQueue* queue_of_next_event(TimeNs& event_ns) const;

  SimClock& clock_;
  SimOptions options_;
  SimFaults faults_;
  Random random_;
  std::uint64_t capacity_bytes_;
  bool is_stalled_ = false;
  std::uint64_t generation_ = 0;
  std::uint64_t num_reads_ = 0;
  std::uint64_t num_direct_refused_ = 0;
  std::uint64_t num_writes_ = 0;
  std::uint64_t written_bytes_ = 0;
  std::uint64_t change_sequence_ = 0;
  std::uint64_t op_sequence_ = 0;
  TimeNs transfer_end_ns_ = 0;
  // Far from real descriptors, so that one used for the other fails.
  int next_fd_ = 1'000'000;

  std::map<std::string, std::vector<std::byte>> files_;
  Names names_;
  Names durable_names_;
  std::vector<NameChange> name_changes_;
  std::map<int, Handle> handles_;
  std::map<std::string, Lock> locks_;
  std::vector<std::shared_ptr<SimIoQueue>> queues_;
};

// Used by the files that implement the state and its handles.
std::unique_ptr<Directory> make_sim_directory(std::shared_ptr<SimDiskState> state);
std::unique_ptr<IoEngine> make_sim_io_engine(std::shared_ptr<SimDiskState> state);

}  // namespace kvtier::testing
