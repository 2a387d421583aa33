// What custom_ops/affinity.h does to a thread's set of processors, step by step; prints the first step that is wrong.
#include "affinity.h"

#include <cstdio>
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

bool may_run_on(const std::vector<int>& processors) {
  cpu_set_t found{}, expected = set_of(processors);
  sched_getaffinity(0, sizeof found, &found);
  return CPU_EQUAL(&found, &expected);
}

// On a thread of its own, with any two of its processors.
const char* steps(const std::vector<int>& all, int a, int b) {
  using trigraph::keep_off;
  allow({a});
  keep_off(a);
  if (!may_run_on({a})) return "the only processor is given up";
  allow({b});
  allow(all);
  keep_off(-1);
  const int here = trigraph::current_processor(), other = here == a ? b : a;
  keep_off(other);
  if (trigraph::current_processor() == here && !may_run_on(all)) return "moved off a processor that it was not on";
  allow({a});
  allow({a, b});
  keep_off(trigraph::current_processor());
  const bool is_on_b = may_run_on({b});
  if (!is_on_b && !may_run_on({a})) return "not moved off the caller's processor";
  keep_off(is_on_b ? b : a);  // of another caller
  if (!may_run_on({is_on_b ? a : b})) return "not moved back for another caller";
  const int only = is_on_b ? b : a;
  allow({only});
  keep_off(only);
  if (!may_run_on({only})) return "a set that somebody narrowed is widened";
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
      if (a != b && !wrong) std::thread([&] { wrong = steps(all, a, b); }).join();
  if (wrong) std::puts(wrong);
  return wrong != nullptr;
}
