// The public face of the simulated disk. Not thread-safe.
#include <utility>

#include "testing/sim_disk_state.h"

namespace kvtier::testing {

class SimDisk::Impl final : public SimDiskState {
 public:
  using SimDiskState::SimDiskState;
};

SimDisk::SimDisk(SimClock& clock, const SimOptions& options)
    : impl_(std::make_shared<Impl>(clock, options)) {}

SimDisk::~SimDisk() = default;

std::unique_ptr<Directory> SimDisk::make_directory() { return make_sim_directory(impl_); }

std::unique_ptr<IoEngine> SimDisk::make_io_engine() { return make_sim_io_engine(impl_); }

void SimDisk::crash(bool keeps_all) { impl_->crash(keeps_all); }

SimFaults& SimDisk::faults() { return impl_->faults(); }

void SimDisk::set_stalled(bool is_stalled) { impl_->set_stalled(is_stalled); }

void SimDisk::set_capacity_bytes(std::uint64_t capacity_bytes) {
  impl_->set_capacity_bytes(capacity_bytes);
}

std::map<std::string, std::vector<std::byte>>& SimDisk::files() { return impl_->files(); }

std::uint64_t SimDisk::allocated_bytes() const { return impl_->allocated_bytes(); }

std::uint64_t SimDisk::num_reads() const { return impl_->num_reads(); }
std::uint64_t SimDisk::num_direct_refused() const { return impl_->num_direct_refused(); }

std::uint64_t SimDisk::num_writes() const { return impl_->num_writes(); }

std::uint64_t SimDisk::written_bytes() const { return impl_->written_bytes(); }

TimeNs SimDisk::next_event_ns() const { return impl_->next_event_ns(); }

void SimDisk::run_due() { impl_->run_due(); }

}  // namespace kvtier::testing
