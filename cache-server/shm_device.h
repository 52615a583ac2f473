// Pages of leases in device memory, for workers of this machine that have the same GPU: copies them
// there, tells where they lie, keeps them while their lease lasts, and takes back what a worker has
// read or has left behind at its death.
//
//   kDevice -> HbmExport --.
//   kPlace  -> GetLeased -> Hbm::Promote -> HbmExport::Share -> answer
//                               `-- held until the lease ends; then the slabs wait for the worker
//
// Who      A page goes to a worker whose caller may push into its scope: who maps a chunk of device
//          memory can write it. Of a scope that others read only where the settings say so: what
//          is written there is written for them, too.
// Threads  one of its own for all workers, so that a device that is slow holds up nobody else.
//          Take() and Forget() from the server's thread
// Errors   go to the client, page by page, and are counted: it then reads host memory
// Limits   1024 workers, those included whose connection ended and whose process, which may still
//          map what it was given, did not; 256 of those a tenant; of one
//          answer 256 pages, 2 MiB, and 4 pieces of memory that are new to the worker, or those of
//          one page, at most 64
// Cost     looks at all workers every 10 ms while there are any
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache-server/service_context.h"
#include "cache-server/shm_connection.h"
#include "storage/hbm_export.h"

namespace pagoda {

class ShmDevices {
 public:
  explicit ShmDevices(ServiceContext& context) : context_(context) {}
  ~ShmDevices() { Stop(); }
  ShmDevices(const ShmDevices&) = delete;
  ShmDevices& operator=(const ShmDevices&) = delete;

  // Answers a kDevice or kPlace. The thread begins with the first.
  void Take(const std::shared_ptr<ShmConnection>& connection, const CallerPtr& caller,
            const shm::Request& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // The connection has ended; its process may read on.
  void Forget(const std::shared_ptr<ShmConnection>& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    std::shared_ptr<ShmConnection> connection;
    CallerPtr caller;  // null: it has ended
    shm::Request request;
  };
  // Of a lease: the pages that it named when they were asked for.
  struct Held {
    uint64_t grant = 0;  // of the lease, when `pages` were last compared with it
    std::map<RecordKey, DevicePagePtr> pages;
  };
  struct Worker {
    std::shared_ptr<ShmConnection> connection;  // null once it has ended
    std::string tenant;
    std::unique_ptr<HbmExport> exported;
    std::map<LeaseId, Held> held;
  };
  struct Copied {
    HostPagePtr page;
    DevicePagePtr copy;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(const ShmConnection* connection);
  void Open(const Job& job);
  absl::Status TryOpen(const Job& job, DeviceFallback& reason);
  void Place(const Job& job);
  absl::StatusOr<Copied> CopyPage(const Job& job, LeaseId lease, const RecordKey& key, Held& held,
                                  DeviceFallback& reason);
  absl::StatusOr<SharedDevicePage> SharePage(const DevicePage& copy, Worker& worker,
                                             DeviceFallback& reason);
  void DropUnnamed(Worker& worker);
  void Look();

  ServiceContext& context_;

  absl::Mutex mutex_;
  std::vector<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;

  // Of its own thread.
  std::map<const ShmConnection*, Worker> workers_;
  std::vector<Worker> closed_;  // whose processes may still read, or map, what they were given

  std::thread thread_;
};

}  // namespace pagoda
