// BlockedSignals: while it lives, the calling thread takes no signals, so that threads it starts
// take none either. For one thread.
#pragma once

#include <signal.h>

namespace kvtier {

class BlockedSignals {
 public:
  BlockedSignals() {
    // SIGSEGV and its like stay deliverable, for handlers that print where a thread died. The rest
    // is the application's business and would only interrupt transfers (or, as SIGXFSZ, end it).
    sigset_t signals;
    sigfillset(&signals);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      sigdelset(&signals, fault);
    }
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace kvtier
