// What custom_ops/affinity.h does to threads' sets of processors, step by step; prints the first step that is wrong.
#include "affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <thread>
#include <vector>

namespace {

cpu_set_t set_of(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int processor : processors) CPU_SET(processor, &set);
  return set;
}

void allow(const std::vector<int>& processors) {
  cpu_set_t set = set_of(processors);
  sched_setaffinity(0, sizeof set, &set);
}

bool may_run_on(pid_t thread, const std::vector<int>& processors) {
  cpu_set_t found{}, expected = set_of(processors);
  sched_getaffinity(thread, sizeof found, &found);
  return CPU_EQUAL(&found, &expected);
}

// A thread that helps. On a thread of its own, with any two of its processors.
const char* helps(const std::vector<int>& all, int a, int b) {
  const auto keep_off = [](int processor) { trigraph::keep_off(std::thread::id(), processor); };
  allow({a});
  keep_off(a);
  if (!may_run_on(0, {a})) return "the only processor is given up";
  allow({b});
  allow(all);
  keep_off(-1);
  const int here = sched_getcpu(), other = here == a ? b : a;
  keep_off(other);
  if (sched_getcpu() == here && !may_run_on(0, all))
    return "moved off a processor of a caller that it has found elsewhere";
  allow({a});
  allow({a, b});
  keep_off(sched_getcpu());
  const bool is_on_b = may_run_on(0, {b});
  if (!is_on_b && !may_run_on(0, {a})) return "not moved off the caller's processor";
  keep_off(is_on_b ? b : a);  // of another caller
  if (!may_run_on(0, {is_on_b ? a : b})) return "not moved back for another caller";
  allow({a, b});
  trigraph::keep_off(std::this_thread::get_id(), b);
  if (!may_run_on(0, {a})) return "may still wake on the processor of a new caller";
  const int only = is_on_b ? b : a;
  allow({only});
  keep_off(only);
  if (!may_run_on(0, {only})) return "a set that somebody narrowed is widened";
  return nullptr;
}

// A thread whose work is shared, on processor a, by a thread that it finds there or on b. On a thread of its own.
const char* calls(int a, int b) {
  allow({a});
  if (trigraph::claim_processor() != a) return "the processor is wrong";
  const auto moved = [&](std::thread::id caller, int helper_on, int call_from) {
    allow({call_from == a ? b : a});
    trigraph::claim_processor();
    std::promise<pid_t> helped;
    std::promise<void> seen;
    std::thread helper([&] {
      allow({helper_on});
      trigraph::keep_off(caller, -1);
      allow({a, b});
      helped.set_value(static_cast<pid_t>(syscall(SYS_gettid)));
      seen.get_future().wait();
    });
    const pid_t thread = helped.get_future().get();
    allow({call_from});
    trigraph::claim_processor();
    const bool narrowed = may_run_on(thread, {call_from == a ? b : a}), left_alone = may_run_on(thread, {a, b});
    seen.set_value();
    helper.join();
    return narrowed ? 1 : left_alone ? 0 : -1;
  };
  const std::thread::id self = std::this_thread::get_id();
  if (moved(self, a, a) != 1) return "its helper is not moved off the processor that it comes to";
  if (moved(self, b, b) != 1) return "nor a second time, after the first helper has ended";
  if (moved(self, b, a) != 1) return "its helper elsewhere may still wake on the processor that it comes to";
  if (moved(std::thread::id(), a, a) != 0) return "the helper of another caller is moved";
  return nullptr;
}

}  // namespace

int main() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> all;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &set)) all.push_back(processor);
  const char* wrong = nullptr;
  for (int a : all)
    for (int b : all)
      if (a != b && !wrong) std::thread([&] { wrong = helps(all, a, b); }).join();
  for (int a : all)
    for (int b : all)
      if (a != b && !wrong) std::thread([&] { wrong = calls(a, b); }).join();
  if (wrong) std::puts(wrong);
  return wrong != nullptr;
}
