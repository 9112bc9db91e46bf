// DirectoryDouble: counts and, where a test says so, refuses the calls of a Directory, else
// delegates. As thread-safe as the hooks that a test sets.
#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/directory.h"

namespace kvtier::testing {

/// What the double asks before it delegates: anything but ok is the answer instead.
struct DirectoryHooks {
  std::function<Status(const std::string& name, const OpenFlags& flags)> on_open;
  std::function<Status(const std::string& name)> on_remove;
  std::function<Status(const std::string& source)> on_rename;
  std::function<Status(const std::string& name)> on_write;
  std::function<Status(const std::string& name, std::uint64_t offset_bytes)> on_read;
  std::function<Status()> on_allocate;
  std::function<void(const std::string& name)> on_synced;
  std::size_t num_open = 0;
  std::size_t num_open_max = 0;
};

class DirectoryDouble final : public Directory {
 public:
  DirectoryDouble(std::unique_ptr<Directory> inner, std::shared_ptr<DirectoryHooks> hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}

  const std::string& path() const override { return inner_->path(); }

  Result<int> open_file(const std::string& name, const OpenFlags& flags) override {
    if (hooks_->on_open) {
      Status refused = hooks_->on_open(name, flags);
      if (!refused.is_ok()) return refused;
    }
    auto opened = inner_->open_file(name, flags);
    if (opened.is_ok()) {
      names_[opened.value()] = name;
      hooks_->num_open = names_.size();
      hooks_->num_open_max = std::max(hooks_->num_open_max, names_.size());
    }
    return opened;
  }
  void close_file(int fd) override {
    names_.erase(fd);
    hooks_->num_open = names_.size();
    inner_->close_file(fd);
  }
  Status remove_file(const std::string& name) override {
    Status refused = hooks_->on_remove ? hooks_->on_remove(name) : Status::ok();
    return refused.is_ok() ? inner_->remove_file(name) : refused;
  }
  Status rename_file(const std::string& source, const std::string& target) override {
    Status refused = hooks_->on_rename ? hooks_->on_rename(source) : Status::ok();
    return refused.is_ok() ? inner_->rename_file(source, target) : refused;
  }
  Result<std::vector<std::string>> list_files() override { return inner_->list_files(); }
  Result<FileStat> stat_file(const std::string& name) override { return inner_->stat_file(name); }
  Result<FileStat> stat_fd(int fd) override { return inner_->stat_fd(fd); }
  Status allocate(int fd, std::uint64_t offset_bytes, std::uint64_t length_bytes) override {
    Status refused = hooks_->on_allocate ? hooks_->on_allocate() : Status::ok();
    return refused.is_ok() ? inner_->allocate(fd, offset_bytes, length_bytes) : refused;
  }
  Status truncate(int fd, std::uint64_t length_bytes) override {
    return inner_->truncate(fd, length_bytes);
  }
  Status read_at(int fd, std::uint64_t offset_bytes, std::span<std::byte> target) override {
    Status refused = hooks_->on_read ? hooks_->on_read(names_[fd], offset_bytes) : Status::ok();
    return refused.is_ok() ? inner_->read_at(fd, offset_bytes, target) : refused;
  }
  Status write_at(int fd, std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    Status refused = hooks_->on_write ? hooks_->on_write(names_[fd]) : Status::ok();
    return refused.is_ok() ? inner_->write_at(fd, offset_bytes, source) : refused;
  }
  Status sync_file(int fd) override {
    Status synced = inner_->sync_file(fd);
    if (hooks_->on_synced) hooks_->on_synced(names_[fd]);
    return synced;
  }
  Status sync() override { return inner_->sync(); }
  Result<std::uint64_t> free_bytes() override { return inner_->free_bytes(); }
  std::uint32_t file_system_block_bytes() override { return inner_->file_system_block_bytes(); }
  DirectAlignment direct_alignment() override { return inner_->direct_alignment(); }
  bool is_present() override { return inner_->is_present(); }
  Status reopen() override { return inner_->reopen(); }
  Status lock(const std::string& name, const std::string& text) override {
    return inner_->lock(name, text);
  }
  void unlock() override { inner_->unlock(); }
  void close_after_fork() override { inner_->close_after_fork(); }

 private:
  const std::unique_ptr<Directory> inner_;
  const std::shared_ptr<DirectoryHooks> hooks_;
  std::map<int, std::string> names_;
};

}  // namespace kvtier::testing
