// The public face of a store: refuses calls when it is closed or forked, and turns a broken
// invariant into a failed store. Thread-safe.
#include "store/store.h"

#include <utility>

#include "base/usable_cpus.h"
#include "io/throttled_io_engine.h"
#include "store/store_impl.h"

namespace kvtier {
namespace {

Status closed_after_fork() {
  return Status(StatusCode::kClosed, "the store belongs to the parent process");
}

}  // namespace

/// Calls `body` unless the store is abandoned; an InternalError fails the store.
#define KVTIER_STORE_CALL(...)                           \
  if (impl_->is_abandoned()) return closed_after_fork(); \
  try {                                                  \
    return __VA_ARGS__;                                  \
  } catch (const InternalError& error) {                 \
    impl_->fail(error.what());                           \
    return Status(StatusCode::kInternal, error.what());  \
  }

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Store::~Store() {
  // In a forked child the threads and their locks are gone: nothing of it can be taken down.
  // Neither can it while a copy that did not end in time still uses it.
  if (impl_->is_abandoned() || impl_->close_for_good()) (void)impl_.release();
}

Result<std::shared_ptr<Store>> Store::open(const StoreOptions& options, StoreSeams seams) {
  try {
    auto impl = std::make_unique<Impl>(options, std::move(seams));
    std::shared_ptr<Store> store(new Store(std::move(impl)));
    Status opened = store->impl_->open();
    if (!opened.is_ok()) return opened;
    return store;
  } catch (const InternalError& error) {
    return Status(StatusCode::kInternal, error.what());
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kExhausted, "cannot open store: out of memory");
  }
}

Result<std::shared_ptr<Store>> Store::open(
    const StoreOptions& options,
    std::function<void(const char* level, const std::string& text)> log) {
  StoreSeams seams;
  auto clock = std::make_shared<SystemClock>();
  seams.clock = clock;
  // The executor borrows the clock: it must not outlive it.
  std::shared_ptr<Executor> executor = make_thread_executor(*clock, options.num_copy_threads);
  seams.executor = std::shared_ptr<Executor>(
      executor.get(), [clock, executor](Executor*) mutable { executor.reset(); });
  seams.log = std::move(log);
  if (!options.path.empty()) {
    auto directory = open_posix_directory(options.path);
    if (!directory.is_ok()) return directory.status();
    seams.directory = std::move(directory).value();
    auto chosen = choose_io_engine(options.io, *clock, options.num_io_threads, usable_cpus());
    if (!chosen.is_ok()) return chosen.status();
    seams.io_engine = std::move(chosen.value().engine);
    if (!chosen.value().note.empty() && seams.log) {
      seams.log("warning", "disk I/O uses threads, not io_uring: " + chosen.value().note);
    }
    seams.io_note = std::move(chosen.value().note);
    if (options.simulated_disk) {
      seams.io_engine =
          make_throttled_io_engine(std::move(seams.io_engine), *clock, *options.simulated_disk);
    }
  }
  return open(options, std::move(seams));
}

Result<std::uint32_t> Store::add_namespace(const NamespaceOptions& options){
    KVTIER_STORE_CALL(impl_ -> add_namespace(options))}

Result<LookupResult> Store::lookup(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                                   bool is_prefix, TimeNs max_load_ns){
    KVTIER_STORE_CALL(impl_->lookup(namespace_index, keys, is_prefix, max_load_ns))}

Result<LeaseResult> Store::lease(std::uint32_t namespace_index, std::span<const BlockKey> keys,
                                 bool is_prefix, TimeNs ttl_ns, std::string owner) {
  KVTIER_STORE_CALL(impl_->lease(namespace_index, keys, is_prefix, ttl_ns, std::move(owner)))
}

bool Store::release(std::uint64_t lease_id) {
  return !impl_->is_abandoned() && impl_->release(lease_id);
}

TimeNs Store::lease_expires_in_ns(std::uint64_t lease_id) {
  return impl_->is_abandoned() ? 0 : impl_->lease_expires_in_ns(lease_id);
}

Result<std::uint64_t> Store::pin(std::uint32_t namespace_index, std::span<const BlockKey> keys){
    KVTIER_STORE_CALL(impl_ -> pin(namespace_index, keys))}

Result<std::uint64_t> Store::unpin(std::uint32_t namespace_index, std::span<const BlockKey> keys){
    KVTIER_STORE_CALL(impl_->unpin(namespace_index, keys))}

Result<std::vector<Outcome>> Store::put(const PutRequest& request){
    KVTIER_STORE_CALL(impl_->put(request))}

Result<std::vector<Outcome>> Store::get(const GetRequest& request){
    KVTIER_STORE_CALL(impl_->get(request))}

Result<std::shared_ptr<Job>> Store::put_async(const PutRequest& request,
                                              std::function<void()> on_end){
    KVTIER_STORE_CALL(impl_->put_async(request, std::move(on_end)))}

Result<std::shared_ptr<Job>> Store::get_async(const GetRequest& request,
                                              std::function<void()> on_end){
    KVTIER_STORE_CALL(impl_->get_async(request, std::move(on_end)))}

Result<std::shared_ptr<Job>> Store::save_async(const SaveRequest& request,
                                               std::function<void()> on_end){
    KVTIER_STORE_CALL(impl_->save_async(request, std::move(on_end)))}

Result<std::shared_ptr<Job>> Store::load_async(const LoadRequest& request,
                                               std::function<void()> on_end){
    KVTIER_STORE_CALL(impl_->load_async(request, std::move(on_end)))}

Result<std::vector<HostMemory>> Store::host_memory(){KVTIER_STORE_CALL(impl_->host_memory())}

Status Store::place_near(const std::string& pci_address){
    KVTIER_STORE_CALL(impl_->place_near(pci_address))}

Result<std::vector<std::shared_ptr<const Arena>>> Store::shared_arenas(){
    KVTIER_STORE_CALL(impl_->shared_arenas())}

Status Store::wait_job(const Job& job,
                       TimeNs timeout_ns){KVTIER_STORE_CALL(impl_->wait_job(job, timeout_ns))}

Status Store::cancel_job(const Job& job){KVTIER_STORE_CALL(impl_->cancel_job(job))}

Result<std::vector<std::shared_ptr<Job>>> Store::poll_jobs(){KVTIER_STORE_CALL(impl_->poll_jobs())}

Result<int> Store::job_event_fd(){KVTIER_STORE_CALL(impl_->job_event_fd())}

Status Store::prefetch(std::uint32_t namespace_index, std::span<const BlockKey> keys){
    KVTIER_STORE_CALL(impl_->prefetch(namespace_index, keys))}

Result<std::uint64_t> Store::erase(std::uint32_t namespace_index, std::span<const BlockKey> keys){
    KVTIER_STORE_CALL(impl_->erase(namespace_index, keys))}

Result<std::uint64_t> Store::erase_where(const EraseFilter& filter){
    KVTIER_STORE_CALL(impl_->erase_where(filter))}

Result<FlushResult> Store::flush(TimeNs timeout_ns){KVTIER_STORE_CALL(impl_->flush(timeout_ns))}

Result<Store::ClearResults> Store::clear(bool is_host, bool is_disk){
    KVTIER_STORE_CALL(impl_->clear(is_host, is_disk))}

std::vector<Holder> Store::holders(std::size_t num_max) {
  return impl_->is_abandoned() ? std::vector<Holder>{} : impl_->holders(num_max);
}

StoreStats Store::stats() { return impl_->is_abandoned() ? StoreStats{} : impl_->stats(); }

Status Store::close(TimeNs timeout_ns){KVTIER_STORE_CALL(impl_ -> close(timeout_ns))}

Status Store::check_consistency() {
  KVTIER_STORE_CALL(impl_->check_consistency())
}

void Store::abandon_after_fork() { impl_->abandon_after_fork(); }

bool Store::is_abandoned() const { return impl_->is_abandoned(); }

}  // namespace kvtier
