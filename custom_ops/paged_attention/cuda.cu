// PagedAttention on a device. The cache is walked in splits of kSplit positions, each with a softmax of its own, merged
// in order: by the block that walked them when there are tiles enough to fill the device, else by the last block of a
// tile that is done. The arithmetic is the same, so a row's bits depend on its query and on the entries up to its
// position alone.
#include <utility>

#include "attend_few.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kMostWidth = 1024;  // of a head
constexpr int kWideHead = 256;    // wider ones leave shared memory for tiles of half as many queries
constexpr int kBlocksEach = 4;    // of a multiprocessor that keep it busy
// Bytes of splits that wait to be merged.
#if defined(__CUDACC__)
constexpr int64_t kPartialBytes = int64_t{256} << 20;
#else
const int64_t kPartialBytes = emulator::setting("TRIGRAPH_EMULATED_PARTIAL_BYTES", int64_t{256} << 20);
#endif

// A block's shared memory has keys or values of the step, then queries, and their values so far.
template <class T, int Q>
constexpr int kStageBytes =
    std::is_same_v<T, Q8> ? kValueBytes<T> : std::max(kValueBytes<T>, StagedScores<T, Q>::kBytes);
template <class T, int Q>
int block_bytes(int width) {
  return kStageBytes<T, Q> + 2 * Q * width * static_cast<int>(sizeof(float));
}

// The splits of a tile that are the block's, and y where it is the last one. kPlain: heads have gates, and rows see all
// positions up to their own, or those of lists.
template <class T, int Q, bool kPlain>
__device__ __forceinline__ void walk_tile(const Ragged& sequences, const Lists& lists, const Rotation& rotation,
                                          const AttentionShape& shape, const AttendTile& tile, const float* q_gate,
                                          const float* norm, const T* keys, const T* values, unsigned* done,
                                          Shared<Q>& shared, float* y) {
  const int thread = threadIdx.x, kv_head = static_cast<int>(blockIdx.y), width = shape.width;
  const int begin = static_cast<int>(blockIdx.z);
  char* stage = shared_memory();
  auto* query = reinterpret_cast<float*>(stage + kStageBytes<T, Q>);
  float* total = query + Q * width;  // the queries' splits so far, [Q][width]
  if (thread == 0) {
    shared.sequence = tile.sequence, shared.count = tile.count, shared.splits = tile.splits();
    shared.row = tile.start + tile.first / shape.group, shared.place = tile.past + tile.first / shape.group;
    shared.bad = shared.wrong = -1, shared.lists = lists, shared.offset = tile.offset;
  }
  if (thread < tile.count) {
    const int n = tile.first + thread, row = n / shape.group;
    shared.head[thread] = int64_t{tile.start + row} * shape.heads() + kv_head * shape.group + n - row * shape.group;
    shared.last[thread] = tile.last_of(lists, row);
    shared.hidden[thread] = lists.first_seen(tile.past + row) - tile.offset;
    shared.at[thread] = rotation.at(tile.start + row, tile.past + row);
  }
  __syncthreads();
  for (int split = begin; split < shared.splits; split += shared.partials ? static_cast<int>(gridDim.z) : 1) {
    const bool first = shared.partials || split == 0;
    const int seen = shared.seen(shared.count - 1, split);
    const int number = split * kSplit + min(thread, seen - 1);
    const int position =
        (kPlain ? 0 : shared.offset) + shared.lists.place(shared.row, shared.place, number, shared.wrong);
    const int64_t entry = sequences.entry(shared.sequence, position, shared.bad);
    shared.entry[thread] = static_cast<uint32_t>(entry * shape.kv_heads + kv_head);
    __syncthreads();
    prefetch_entries(keys, values, shared.entry, seen, shape.stride);
    if (split == begin)
      prepare_query<T, Q, kPlain>(rotation, shape, shared, shared.count, q_gate, norm, total + thread / kWarp * width,
                                  query);
    __syncthreads();
    score<T, Q>(keys, shared.entry, seen, shape.stride, width, query, stage, shared.weight);
    __syncthreads();
    exponentiate<Q, kPlain>(shared.count, split, first, shared);
    __syncthreads();
    add_values(shape, shared.count, values, split, first, shared, stage, total);
    __syncthreads();
    if (shared.partials) write_partial(width, shared, total, partial_at<Q>(shared, width, split));
  }
  if (thread == 0 && shared.bad >= 0) sequences.tell_page(shared.sequence, shared.bad);
  if (thread == 0 && shared.wrong >= 0) shared.lists.tell(sequences, shared.row, shared.place, shared.wrong);
  if (shared.partials) {
    const int blocks = min(shared.splits, static_cast<int>(gridDim.z));
    if (!is_last(done + blockIdx.x * gridDim.y + blockIdx.y, static_cast<unsigned>(blocks))) return;
    merge_splits(width, shared.count, shared, total);
  }
#pragma unroll 1
  for (int m = thread / kWarp; m < shared.count; m += kThreads / kWarp)
    finish<Q, kPlain>(shape, m, q_gate, shared, total, y);
}

// Blocks that share a multiprocessor.
template <class T, int Q, bool kPlain>
constexpr int kBlocks = std::is_same_v<T, Q8> || (kPlain && (std::is_same_v<T, __half> || Q < kMostQueries)) ? 2 : 1;

// grid: [tiles, kv heads, splits that are walked at once, or 1].
template <class T, int Q, bool kPlain>
__global__ void __launch_bounds__(kThreads, kBlocks<T, Q, kPlain>)
    attend(const __grid_constant__ Ragged sequences, const __grid_constant__ Lists given,
           const __grid_constant__ Rotation rotation, const __grid_constant__ AttentionShape shape, const float* q_gate,
           const float* norm, const T* keys, const T* values, Partials partials, float* y) {
  allow_next();
  __shared__ Shared<Q> shared;
  Lists lists = given;
  if constexpr (kPlain) lists.causal = true, lists.window = 0;
  const AttendTile tile(sequences, lists, shape.group, Q, blockIdx.x);
  const int splits = tile.splits(), begin = static_cast<int>(blockIdx.z);
  float* own = partials.of<Q>(tile, splits, shape.width);
  const bool first_block = !blockIdx.x && !blockIdx.y && !blockIdx.z;  // tells what is wrong with the step
  if (!first_block && (!tile.count || (own ? splits : 1) <= begin)) return;
  if (threadIdx.x == 0) shared.partials = own;
  if (sequences.holds() && tile.count)  // `holds` is a barrier, too
    walk_tile<T, Q, kPlain>(sequences, lists, rotation, shape, tile, q_gate, norm, keys, values, partials.done, shared,
                            y);
}

// What all launches of a step take.
struct Step {
  Ragged sequences;
  Lists lists;
  Rotation rotation;
  AttentionShape shape;

  // Positions that all rows of a sequence see together, at most.
  int64_t most_seen() const {
    const int64_t all = sequences.columns * sequences.page_size;
    return lists.window ? std::min(all, lists.window - 1 + sequences.rows) : all;
  }

  // Tiles, and splits of one at most. A sequence may end in a tile that is not full. Splits by the width of the page
  // table, or of lists: the device alone knows the lengths.
  std::pair<int64_t, int64_t> tiles(int queries) const {
    if (lists.groups) return {sequences.rows * blocks_of(shape.group, queries), (lists.most_seen() - 1) / kSplit + 1};
    const int64_t spare = shape.group % queries ? std::min<int64_t>(sequences.sequences, sequences.rows) - 1 : 0;
    return {blocks_of(sequences.rows * shape.group, queries) + spare,
            std::max<int64_t>(1, blocks_of(most_seen(), kSplit))};
  }
};

template <class T>
struct PagedAttention : PagedAttentionSignature<T> {
  explicit PagedAttention(const KernelInfo& info)
      : rotary_(info),
        sight_(info),
        arena_(info),
        group_size_(info.integer("group", 0)),
        given_(info.integer(kGiven, 0)),
        multiprocessors_(multiprocessors()),
        full_device_(kBlocksEach * multiprocessors_),
        done_(full_device_) {
    check_cache_type<T>(info);
  }

  void compute(Context& context) const {
    const CacheShape cache(context.input(2), context.input(3));
    const Tensor q_gate = context.input(0), norm = context.input(1);
    const int64_t rows = q_gate.dims[0], columns = q_gate.dims[1];
    const int64_t group = sight_.query_group(q_gate, cache);
    rotary_.check(norm, cache.width);
    if (cache.width > kMostWidth)
      fail("input key has head dimension %lld; on a GPU it is at most %d", static_cast<long long>(cache.width),
           kMostWidth);
    const Ragged sequences(context.input(4), context.input(5), context.input(6), rows, cache,
                           Operator::paged_attention);
    const Rotation rotation(rotary_, rotary_.positions(context.input(7), rows));
    const Lists lists = this->lists(context.input(8), sequences);
    const Tensor y = context.output(0, {rows, columns / sight_.parts()});
    if (!rows) return;
    if (!cache.pages) fail("input key has no pages");
    constexpr bool kRotated = std::is_same_v<T, Q8>;
    const AttentionShape shape{static_cast<int>(cache.width),
                               static_cast<int>(cache.heads),
                               static_cast<int>(group),
                               static_cast<int>(cache.stride),
                               static_cast<int>(sight_.parts()),
                               static_cast<int>(kRotated ? key_rotation(cache.width) : 0),
                               static_cast<int>(kRotated ? value_rotation(cache.width) : 0)};
    const Step step{sequences, lists, rotation, shape};
    const bool few = rows * group <= 2 * kMostQueries;  // cut into small tiles, so that more blocks have some
    if (!sight_.plain() || !sight_.gated) return enqueue<kMostQueries / 2, false>(context, step, y);
    if constexpr (std::is_same_v<T, __half>)
      if (few && !lists.groups && enqueue_few(context, step, y)) return;
    if (few || cache.width > kWideHead) return enqueue<kMostQueries / 2, true>(context, step, y);
    if constexpr (!std::is_same_v<T, float>)
      if (takes_many(step)) return enqueue<kManyQueries, true>(context, step, y);
    enqueue<kMostQueries, true>(context, step, y);
  }

 private:
  // The lists in the input `groups`; none where no text is so long that a row would have to choose.
  Lists lists(const Tensor& groups, const Ragged& sequences) const {
    sight_.check(groups);
    Lists lists;
    lists.causal = sight_.causal, lists.window = static_cast<int>(sight_.window);
    if (!groups.rank) return lists;
    check_groups(groups, sequences.rows, group_size_, sequences.page_size);
    const int64_t top = groups.dims[1];
    if (top >= sequences.columns * sequences.page_size / group_size_) return lists;
    lists.groups = groups.as<int32_t>(), lists.top = static_cast<int>(top), lists.size = static_cast<int>(group_size_);
    return lists;
  }

  // Whether sequences fill large tiles, of which two fit on a multiprocessor.
  bool takes_many(const Step& step) const {
    constexpr int Q = kManyQueries;
    const int64_t own = step.sequences.rows * step.shape.group / std::max(1, step.sequences.sequences);
    const size_t bytes = block_bytes<T, Q>(step.shape.width) + sizeof(Shared<Q>) + 2048;  // and what the system takes
    return own >= 2 * Q && !step.lists.groups && step.shape.width % kStagedStep == 0 && 2 * bytes <= shared_bytes_;
  }

  // For heads of some widths, where a block may have the shared memory that it takes.
  bool enqueue_few(const Context& context, const Step& step, const Tensor& y) const {
    switch (step.shape.width) {
      case 64:
        return enqueue_few<64>(context, step, y);
      case 128:
        return enqueue_few<128>(context, step, y);
      case 256:
        return enqueue_few<256>(context, step, y);
      default:
        return false;
    }
  }

  template <int W>
  bool enqueue_few(const Context& context, const Step& step, const Tensor& y) const {
    const auto [tiles, splits] = step.tiles(kFewQueries);
    const int64_t blocks = tiles * step.shape.kv_heads, all = tiles * splits;
    const int64_t floats = all * step.shape.kv_heads * kFewQueries * (W + 2);
    const size_t bytes = kFewBytes<W> + sizeof(FewShared<W>) + 1024;  // and what is_last has
    if (bytes > most_shared_bytes_ || blocks > multiprocessors_ || floats * 4 > kPartialBytes) return false;
    const Arena::Memory memory = arena_.take<float>(floats);
    const Partials partials{memory.as<float>(), all, static_cast<int>(splits), done_.at(0)};
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(step.shape.kv_heads),
                    static_cast<unsigned>(std::min(splits, multiprocessors_ / blocks)));
    launch_step(given_ ? step.sequences.rows : kEarlyRows + 1, attend_few<W>, grid, kFewThreads, kFewBytes<W>,
                stream_of(context), step.sequences, step.rotation, step.shape, context.input(0).as<float>(),
                context.input(1).as<float>(), context.input(2).as<__half>(), context.input(3).as<__half>(), partials,
                y.as<float>());
    return true;
  }

  template <int Q, bool kPlain>
  void enqueue(const Context& context, const Step& step, const Tensor& y) const {
    const AttentionShape& shape = step.shape;
    const auto [tiles, splits] = step.tiles(Q);
    const int64_t blocks = tiles * shape.kv_heads, floats = shape.kv_heads * Q * (shape.width + 2);  // of a split
    const bool split = splits > 1 && blocks < full_device_;
    // Long contexts leave room for the lengths that texts have, not for all of them at their longest.
    const int64_t room = split ? std::min(tiles * splits, kPartialBytes / 4 / floats) : 0;
    const Arena::Memory memory = arena_.take<float>(room * floats);
    const Partials partials{memory.as<float>(), room, static_cast<int>(splits), done_.at(0)};
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(step.shape.kv_heads),
                    split ? static_cast<unsigned>(std::min(splits, full_device_ / blocks)) : 1);
    const int bytes = block_bytes<T, Q>(shape.width);
    launch(attend<T, Q, kPlain>, grid, kThreads, bytes, stream_of(context), step.sequences, step.lists, step.rotation,
           shape, context.input(0).as<float>(), context.input(1).as<float>(), context.input(2).as<T>(),
           context.input(3).as<T>(), partials, y.as<float>());
  }

  RotaryAttributes rotary_;
  SightAttributes sight_;
  Arena arena_;
  int64_t group_size_;
  bool given_;
  int64_t multiprocessors_, full_device_;  // full_device_: blocks that keep all of them busy
  Counters done_;
  size_t most_shared_bytes_ = most_shared_bytes(), shared_bytes_ = shared_bytes();
};

}  // namespace

const OrtCustomOp* paged_attention_f16() {
  static const Op<Checked<PagedAttention<__half>>> op;
  return &op;
}
const OrtCustomOp* paged_attention_f32() {
  static const Op<Checked<PagedAttention<float>>> op;
  return &op;
}

const OrtCustomOp* paged_attention_q8_0() {
  static const Op<Checked<PagedAttention<Q8>>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
