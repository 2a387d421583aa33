#include "affinity.h"

#if defined(__linux__)

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <list>
#include <mutex>

namespace trigraph {
namespace {

struct Helper {
  const pid_t process = getpid(), thread = static_cast<pid_t>(syscall(SYS_gettid));
  std::atomic<std::thread::id> caller{};  // the last one
  cpu_set_t allowed{}, narrowed{};        // guarded by the list's mutex

  void leave(int left) {
    cpu_set_t current{};
    if (sched_getaffinity(thread, sizeof current, &current) != 0) return;  // more processors than the set has room for
    if (!CPU_EQUAL(&current, &narrowed)) allowed = current;
    narrowed = allowed;
    CPU_CLR(left, &narrowed);
    if (CPU_COUNT(&narrowed) > 0) sched_setaffinity(thread, sizeof narrowed, &narrowed);
  }
};

// The threads that helped and have not ended. A forked child has its parent's too: see `process`.
struct Helpers {
  std::mutex mutex;
  std::list<Helper> list;
};
Helpers& helpers() {
  static auto* all = new Helpers;  // outlives every thread
  return *all;
}

class Membership {
 public:
  Membership() {
    const std::lock_guard<std::mutex> lock(helpers().mutex);
    place_ = helpers().list.emplace(helpers().list.end());
  }
  ~Membership() {
    const std::lock_guard<std::mutex> lock(helpers().mutex);
    helpers().list.erase(place_);
  }
  Membership(const Membership&) = delete;
  Helper& operator*() const { return *place_; }

 private:
  std::list<Helper>::iterator place_;
};

}  // namespace

int claim_processor() {
  thread_local int last = -1;
  const int here = sched_getcpu();
  if (here == last) return here;
  last = here;
  const std::lock_guard<std::mutex> lock(helpers().mutex);
  for (Helper& helper : helpers().list)
    if (helper.caller == std::this_thread::get_id() && helper.process == getpid()) helper.leave(here);
  return here;
}

void keep_off(std::thread::id caller, int processor) {
  thread_local const Membership membership;
  Helper& self = *membership;
  if (self.caller == caller && sched_getcpu() != processor) return;
  const std::lock_guard<std::mutex> lock(helpers().mutex);
  self.caller = caller;
  if (processor >= 0) self.leave(processor);
}

}  // namespace trigraph

#else

namespace trigraph {

int claim_processor() { return -1; }
void keep_off(std::thread::id, int) {}

}  // namespace trigraph

#endif
