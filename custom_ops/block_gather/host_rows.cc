// Rows of a table for a GPU.
#include "host_rows.h"

#include <algorithm>
#include <cstring>

#include "../ort_api.h"
#include "../pool.h"
#include "ahead.h"

namespace trigraph {
namespace {

constexpr int64_t kRun = 16;  // rows that a thread reads at a time

struct Reading {
  const HostRows* rows;

  void run(const Pool& pool) const {
    const auto row = [this](int64_t i) { return rows->table + static_cast<size_t>(rows->ids[i]) * rows->row_bytes; };
    for_rows(pool, [&](int64_t i) { ask_ahead(row(i), static_cast<int64_t>(rows->row_bytes)); });
    for_rows(pool, [&](int64_t i) {
      std::memcpy(rows->out + static_cast<size_t>(i) * rows->row_bytes, row(i), rows->row_bytes);
    });
  }

 private:
  template <class Body>
  void for_rows(const Pool& pool, const Body& body) const {
    pool.parallel_for((rows->count + kRun - 1) / kRun, [&](int64_t run) {
      for (int64_t i = run * kRun; i < std::min((run + 1) * kRun, rows->count); ++i) body(i);
    });
  }
};

}  // namespace
}  // namespace trigraph

extern "C" TRIGRAPH_EXPORT bool trigraph_read_rows(const trigraph::HostRows* rows) {
  using namespace trigraph;
  Reading reading{rows};
  Pool::Job job{};
  job.run = [](void* user, const Pool& pool) { static_cast<Reading*>(user)->run(pool); };
  job.user = &reading;
  Pool& pool = Pool::of(rows->threads);
  pool.start(job);
  return pool.wait(job);
}
