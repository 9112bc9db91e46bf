// The simulated directory: one handle on the simulated disk. Not thread-safe.
#include <cerrno>
#include <set>
#include <utility>

#include "io/file_name.h"
#include "testing/sim_disk_state.h"

namespace kvtier::testing {

class SimDirectory final : public Directory {
 public:
  explicit SimDirectory(std::shared_ptr<SimDiskState> state)
      : state_(std::move(state)), generation_(state_->generation()) {}

  ~SimDirectory() override { close_all(); }

  const std::string& path() const override { return path_; }

  Result<int> open_file(const std::string& name, const OpenFlags& flags) override {
    Status refused = refusal("cannot open file: name=" + name, {&name});
    if (!refused.is_ok()) return refused;
    if (flags.is_new && !flags.is_created) {
      return Status(StatusCode::kInvalidArgument, "cannot open file: is_new needs is_created");
    }
    if (open_fds_.size() == kOpenFdsMax) {
      return Status(StatusCode::kExhausted, "cannot open file: name=" + name +
                                                " num_open_max=" + std::to_string(kOpenFdsMax));
    }
    Result<int> opened = state_->open_file(name, flags);
    if (opened.is_ok()) open_fds_.insert(opened.value());
    return opened;
  }

  void close_file(int fd) override {
    if (open_fds_.erase(fd) > 0) state_->close_file(fd);
  }

  Status remove_file(const std::string& name) override {
    Status refused = refusal("cannot remove file: name=" + name, {&name});
    return refused.is_ok() ? state_->remove_file(name) : refused;
  }

  Status rename_file(const std::string& source, const std::string& target) override {
    Status refused =
        refusal("cannot rename file: source=" + source + " target=" + target, {&source, &target});
    return refused.is_ok() ? state_->rename_file(source, target) : refused;
  }

  Result<std::vector<std::string>> list_files() override {
    Status refused = refusal("cannot list directory", {});
    if (!refused.is_ok()) return refused;
    return state_->list_files();
  }

  Result<FileStat> stat_file(const std::string& name) override {
    Status refused = refusal("cannot stat file: name=" + name, {&name});
    if (!refused.is_ok()) return refused;
    return state_->stat_file(name);
  }

  Result<FileStat> stat_fd(int fd) override {
    Status refused = refusal("cannot stat file", {});
    if (!refused.is_ok()) return refused;
    return state_->stat_fd(fd);
  }

  Status allocate(int fd, std::uint64_t offset_bytes, std::uint64_t length_bytes) override {
    Status refused = refusal("cannot allocate file", {});
    return refused.is_ok() ? state_->allocate(fd, offset_bytes, length_bytes) : refused;
  }

  Status truncate(int fd, std::uint64_t length_bytes) override {
    Status refused = refusal("cannot truncate file", {});
    return refused.is_ok() ? state_->truncate(fd, length_bytes) : refused;
  }

  Status read_at(int fd, std::uint64_t offset_bytes, std::span<std::byte> target) override {
    Status refused = refusal("cannot read file", {});
    if (!refused.is_ok()) return refused;
    return state_->read(fd, offset_bytes, {&target, 1}).status;
  }

  Status write_at(int fd, std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    Status refused = refusal("cannot write file", {});
    if (!refused.is_ok()) return refused;
    // Pieces have no const; writing only reads through them.
    std::span<std::byte> piece(const_cast<std::byte*>(source.data()), source.size());
    return state_->write(fd, offset_bytes, {&piece, 1}).status;
  }

  Status sync_file(int fd) override {
    Status refused = refusal("cannot sync file", {});
    return refused.is_ok() ? state_->finish_sync(fd, state_->begin_sync(fd)) : refused;
  }

  Status sync() override {
    Status refused = refusal("cannot sync directory", {});
    if (refused.is_ok()) state_->sync_names();
    return refused;
  }

  Result<std::uint64_t> free_bytes() override {
    Status refused = refusal("cannot ask for free space", {});
    if (!refused.is_ok()) return refused;
    return state_->free_bytes();
  }

  std::uint32_t file_system_block_bytes() override {
    return state_->options().file_system_block_bytes;
  }

  DirectAlignment direct_alignment() override {
    const std::uint32_t alignment_bytes = state_->options().direct_alignment_bytes;
    return {alignment_bytes, alignment_bytes, true};
  }

  bool is_present() override { return is_alive(); }

  Status reopen() override {
    close_all();
    state_->unlock(this);
    return is_alive() ? Status::ok() : Status(StatusCode::kClosed, "the handle is dead");
  }

  Status lock(const std::string& name, const std::string& text) override {
    Status refused = refusal("cannot lock file: name=" + name, {&name});
    return refused.is_ok() ? state_->lock(name, text, this) : refused;
  }

  void unlock() override { state_->unlock(this); }

  void close_after_fork() override { close_all(); }

 private:
  static constexpr std::size_t kOpenFdsMax = 256;

  bool is_alive() const { return !is_closed_ && generation_ == state_->generation(); }

  // Ok when the call may go on.
  Status refusal(const std::string& text, std::initializer_list<const std::string*> names) const {
    for (const std::string* name : names) {
      if (!is_file_name(*name)) return Status(StatusCode::kInvalidArgument, text);
    }
    if (!is_alive()) return Status(StatusCode::kClosed, text + ": the handle is dead");
    // A real call would block; here nobody could end that.
    if (state_->is_stalled()) return Status::from_errno(ETIMEDOUT, text);
    return Status::ok();
  }

  void close_all() {
    if (is_alive()) {
      for (const int fd : open_fds_) state_->close_file(fd);
      state_->unlock(this);
    }
    open_fds_.clear();
    is_closed_ = true;
  }

  const std::string path_ = "/simulated";
  const std::shared_ptr<SimDiskState> state_;
  const std::uint64_t generation_;
  std::set<int> open_fds_;
  bool is_closed_ = false;
};

std::unique_ptr<Directory> make_sim_directory(std::shared_ptr<SimDiskState> state) {
  return std::make_unique<SimDirectory>(std::move(state));
}

}  // namespace kvtier::testing
