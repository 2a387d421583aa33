// Rows of a table for a GPU.
#include "host_rows.h"

#include <algorithm>
#include <cstring>

#include "../ort_api.h"
#include "../pool.h"

namespace trigraph {
namespace {

constexpr int64_t kFew = 256;  // rows that are read one by one, so that as many page faults as threads overlap
constexpr int64_t kRun = 16;   // of more, rows that a thread reads at a time

struct Reading {
  const HostRows* rows;

  void run(const Pool& pool) const {
    const int64_t each = rows->count > kFew ? kRun : 1;
    pool.parallel_for((rows->count + each - 1) / each, [&](int64_t run) {
      for (int64_t i = run * each; i < std::min((run + 1) * each, rows->count); ++i)
        std::memcpy(rows->out + static_cast<size_t>(i) * rows->row_bytes,
                    rows->table + static_cast<size_t>(rows->ids[i]) * rows->row_bytes, rows->row_bytes);
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
