// Keeps threads of a pool off the processor of the thread that they help.
//
// Linux may wake a pool's thread on the processor of its caller, or move the caller to that of the thread, and leave
// the two there, taking turns tick by tick, while another processor idles: seen on virtual machines whose processors
// share no cache in the kernel's eyes, where it doubles the time of a step.
#pragma once

#include <thread>

namespace trigraph {

// Called by a thread that is about to share its work: keeps the threads that helped it off the processor that it has
// come to, wherever they sleep: one that wakes there may not run before the work is done. Returns that processor, -1
// where threads cannot be moved.
int claim_processor();

// Called by a thread of the pool before it helps: from the first time on it keeps off its caller's processor, until it
// helps another caller. A set of processors that somebody else gave the thread is narrowed, never widened; one that
// equals the set chosen here is taken for it.
void keep_off(std::thread::id caller, int processor);

}  // namespace trigraph
