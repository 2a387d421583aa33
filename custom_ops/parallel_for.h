// Work shared with the session's thread pool, whose threads keep off the processor of the caller.
#pragma once

#include <atomic>
#include <exception>
#include <thread>
#include <type_traits>

#include "affinity.h"
#include "context.h"

namespace trigraph {

template <class Body>
void Context::parallel_for(int64_t count, Body&& body) const {
  if (count <= 0) return;
  if (count == 1) return body(int64_t{0});
  struct Shared {
    std::remove_reference_t<Body>* body;
    std::thread::id caller;
    int processor;
    std::atomic<bool> failed{false};
  } shared{&body, std::this_thread::get_id(), claim_processor()};
  auto call = [](void* user, size_t i) {
    auto* all = static_cast<Shared*>(user);
    if (std::this_thread::get_id() != all->caller) keep_off(all->caller, all->processor);
    try {
      (*all->body)(static_cast<int64_t>(i));
    } catch (const std::exception&) {
      all->failed = true;
    }
  };
  api_.check(api_->KernelContext_ParallelFor(context_, call, count, count, &shared), "ParallelFor");
  if (shared.failed) fail("a thread ran out of memory");
}

}  // namespace trigraph
