// HostBlockGather: BlockGather of a table that stays in the host's memory, which may be far larger than the device's.
//
// The ids go to the host and the blocks of their rows come back, in a stream's order: a copy, a host function, a copy.
// So nobody waits, drafts that the device alone knows have rows too, and a captured graph replays all of it.
#include "../blocks/cuda/products.h"
#include "../cuda/kernel.h"
#include "../cuda/shared_memory.cuh"
#include "host_rows.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

ReadHostRows read_rows = nullptr;

class HostBlockGather {
 public:
  static constexpr const char* kName = "HostBlockGather";
  static constexpr Argument kInputs[] = {{"ids", DType::i64}, {"table", DType::any, false, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  explicit HostBlockGather(const KernelInfo& info)
      : kernel_(product_kernel(info.text("type"), "float32")),
        threads_(static_cast<int>(info.integer("threads", 1))),
        arena_(info) {
    if (!read_rows) fail("the CPU library's rows are not known");
  }

  void compute(const Context& context) {
    const Tensor ids = context.input(0), table = context.input(1);
    ids.expect({-1});
    const int64_t count = ids.dims[0], width = table_width(table, kernel_);
    const int64_t row_bytes = check_weight(table, kernel_, width);
    const Tensor y = context.output(0, {count, width});
    if (!count) return;
    const int64_t id_bytes = (count * 8 + kAlignment - 1) / kAlignment * kAlignment;
    const auto bytes = static_cast<size_t>(id_bytes + count * row_bytes);
    const cudaStream_t stream = stream_of(context);
    calls_.stream = stream;
    Lane& lane = Lane::of(stream);
    const std::lock_guard<std::mutex> guard(lane.lock);
    char* shared = lane.take(bytes, false);
    Call& call = calls_.by_count[count];
    call = {table.as<uint8_t>(),
            table.dims[0],
            static_cast<size_t>(row_bytes),
            reinterpret_cast<int64_t*>(shared),
            count,
            reinterpret_cast<uint8_t*>(shared + id_bytes),
            threads_};
    copy(shared, ids.data, static_cast<size_t>(count) * 8, stream);
    check(cudaLaunchHostFunc(stream, read, &call), "a call of the host");
    const Arena::Memory memory = arena_.take<char>(static_cast<int64_t>(bytes));
    copy(memory.as<char>(), shared, bytes, stream);
    kernel_.unpack(memory.as<uint8_t>() + id_bytes, count, row_bytes, width, memory.as<int64_t>(), count, y.as<float>(),
                   stream);
  }

 private:
  static constexpr int64_t kAlignment = 256;

  struct Call {
    const uint8_t* table;
    int64_t rows;  // of the table
    size_t row_bytes;
    int64_t* ids;  // then the numbers of the rows below
    int64_t count;
    uint8_t* out;
    int threads;
  };
  // What captured graphs have lives as long as the session.
  struct Calls {
    std::map<int64_t, Call> by_count;  // the address of one stays
    cudaStream_t stream = nullptr;

    Calls() = default;
    Calls(const Calls&) = delete;
    ~Calls() {
      if (!by_count.empty()) (void)cudaStreamSynchronize(stream);  // what was enqueued may still call
    }
  };

  static void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "a copy of rows");
  }

  // What is wrong is told, and the step goes on with other bytes.
  static void read(void* user) {
    const Call& call = *static_cast<Call*>(user);
    for (int64_t i = 0; i < call.count; ++i)
      if (call.ids[i] < 0 || call.ids[i] >= call.rows) {
        report_from_host(Operator::host_block_gather, Reason::gather_id, i, call.ids[i], call.rows);
        call.ids[i] = 0;
      }
    const HostRows rows{call.table, call.row_bytes, call.ids, call.count, call.out, call.threads};
    if (!read_rows(&rows)) report_from_host(Operator::host_block_gather, Reason::host_rows_memory);
    for (int64_t i = 0; i < call.count; ++i) call.ids[i] = i;
  }

  const ProductKernel& kernel_;
  int threads_;
  Arena arena_;
  Calls calls_;
};

}  // namespace

const OrtCustomOp* host_block_gather() {
  static const Op<Checked<HostBlockGather>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA

// The CPU library's `trigraph_read_rows`: before a session is opened that has nodes for it.
extern "C" TRIGRAPH_EXPORT void trigraph_use_read_rows(trigraph::ReadHostRows function) {
  trigraph::TRIGRAPH_ISA::read_rows = function;
}
