// GatedDeltaNet on a device, in two launches. The first one convolves, normalises and moves the window, a block for
// each head of channels; the second one runs the delta rule, a block for each value head of a sequence, with the state
// in registers: read once, written once. Tokens go one by one, pending ones and own ones, in a verify as in a prefill:
// so a token's bits depend neither on how many share the step nor on which graph it is in.
#include <iterator>

#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kMostDim = 128;
constexpr int kChunk = 32;     // tokens that a block of the first launch takes
constexpr int kGroup = 8;      // tokens whose keys and queries are in shared memory together
constexpr int kRowGroups = 4;  // threads that share a column of the state
constexpr int kHistory = 3;

struct Work {
  const float *qkv, *z, *alpha, *beta, *conv, *dt_bias, *a, *norm;
  const float *past_state, *past_window, *past_gates;
  float *state, *window, *gates, *y;
  const int32_t *cu_seqlens, *past_lens, *accepted, *slots_in, *slots_out;
  float* mixed;  // [rows + sequences * K][channels]: after convolution, keys and queries of unit length
  int* verdict;  // whether the first launch found the step to be right
  ErrorRecord* record;
  int64_t rows;
  int sequences, slots, k_heads, v_heads, dim, pending_max;
  bool tiled, commit;
  float eps;

  __device__ int64_t channels() const { return int64_t{2 * k_heads + v_heads} * dim; }
};

struct Sequence {
  int64_t begin, first;  // of its own tokens among the rows, of all its tokens in `mixed`
  int own, pending, slot_in, slot_out;
  bool fresh;  // start of a sequence: state and history are zeros

  __device__ Sequence(const Work& work, int s)
      : begin(work.cu_seqlens[s]),
        first(begin + int64_t{s} * work.pending_max),
        own(work.cu_seqlens[s + 1] - work.cu_seqlens[s]),
        pending(work.accepted[s]),
        slot_in(work.slots_in[s]),
        slot_out(work.slots_out[s]),
        fresh(work.past_lens[s] == 0) {}
  __device__ int count() const { return pending + own; }
};

// Whether sequence s is one that can be; tells why not when `tell`.
__device__ bool sequence_holds(const Work& work, int s, bool tell) {
  const auto wrong = [&](Reason reason, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
    if (tell) report(work.record, Operator::gated_delta_net, reason, a, b, c, d);
    return false;
  };
  const int32_t *cu = work.cu_seqlens, most = work.pending_max;
  if (s == 0 && cu[0] != 0) return wrong(Reason::gdn_first_start, cu[0]);
  if (s == 0 && cu[work.sequences] != work.rows) return wrong(Reason::gdn_last_start, cu[work.sequences], work.rows);
  const int32_t past_len = work.past_lens[s], accepted = work.accepted[s];
  const int32_t slot_in = work.slots_in[s], slot_out = work.slots_out[s];
  if (cu[s + 1] <= cu[s]) return wrong(Reason::gdn_no_token, cu[s], cu[s + 1], s);
  if (!work.commit && int64_t{cu[s + 1]} - cu[s] > most)
    return wrong(Reason::gdn_many_tokens, s, int64_t{cu[s + 1]} - cu[s], most);
  if (cu[s + 1] > work.rows) return wrong(Reason::gdn_past_end, s + 1, cu[s + 1], work.rows);
  if (past_len < 0) return wrong(Reason::gdn_past, s, past_len);
  if (accepted < 0 || accepted > most) return wrong(Reason::gdn_accepted_range, s, accepted, most);
  if (accepted > past_len) return wrong(Reason::gdn_accepted_past, s, accepted, s, past_len);
  if (slot_in < 0 || slot_in >= work.slots) return wrong(Reason::gdn_slot_in, s, slot_in, work.slots);
  if (slot_out < 0 || slot_out >= work.slots) return wrong(Reason::gdn_slot_out, s, slot_out, work.slots);
  for (int other = 0; other < s; ++other)
    if (work.slots_out[other] == slot_out) return wrong(Reason::gdn_two_writers, s, slot_out, other);
  // A row that holds no pending token has beta = -1; head 0 stands for all.
  const float* gates = work.past_gates + int64_t{slot_in} * most * 2 * work.v_heads;
  for (int row = 0; row < accepted; ++row)
    if (gates[int64_t{2 * row + 1} * work.v_heads] < 0) return wrong(Reason::gdn_pending, s, accepted, slot_in, row);
  return true;
}

// Whether no other sequence writes the slot that s reads.
__device__ bool slot_holds(const Work& work, int s, bool tell) {
  const int32_t slot_in = work.slots_in[s];
  if (work.past_lens[s] == 0) return true;
  for (int other = 0; other < work.sequences; ++other)
    if (other != s && work.slots_out[other] == slot_in) {
      if (tell) report(work.record, Operator::gated_delta_net, Reason::gdn_read_written, s, slot_in, other);
      return false;
    }
  return true;
}

// The same answer in every block; block 0 tells why, and keeps the answer for the second launch.
__device__ bool step_holds(const Work& work) {
  bool holds = true;
  for (int s = threadIdx.x; s < work.sequences; s += blockDim.x)
    holds = sequence_holds(work, s, false) && slot_holds(work, s, false) && holds;
  holds = !__syncthreads_or(!holds);
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    *work.verdict = holds;
    bool told = holds;
    for (int s = 0; !told && s < work.sequences; ++s) told = !sequence_holds(work, s, true);
    for (int s = 0; !told && s < work.sequences; ++s) told = !slot_holds(work, s, true);
  }
  return holds;
}

// Column i of a sequence: history, pending tokens, own tokens.
__device__ __forceinline__ float column(const Work& work, const Sequence& sequence, int64_t i, int64_t channel) {
  const int64_t stored = kHistory + sequence.pending;
  if (i >= stored) return work.qkv[(sequence.begin + i - stored) * work.channels() + channel];
  if (sequence.fresh) return 0;
  return work.past_window[(int64_t{sequence.slot_in} * (kHistory + work.pending_max) + i) * work.channels() + channel];
}

// grid: [query, key and value heads, chunks of tokens, sequences]; a thread for each channel of the head.
__global__ void __launch_bounds__(kMostDim) mix(Work work) {
  __shared__ float squares[kChunk][kMostDim / kWarp];
  if (!step_holds(work)) return;
  const Sequence sequence(work, blockIdx.z);
  const int unit = blockIdx.x, warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kChunk, count = min(kChunk, sequence.count() - first);
  if (count <= 0) return;
  const bool active = static_cast<int>(threadIdx.x) < work.dim;
  const int64_t channel = int64_t{unit} * work.dim + (active ? threadIdx.x : 0);
  float* out = work.mixed + (sequence.first + first) * work.channels() + channel;

  const float4 tap = *reinterpret_cast<const float4*>(work.conv + 4 * channel);
  float x0 = column(work, sequence, first, channel), x1 = column(work, sequence, first + 1, channel),
        x2 = column(work, sequence, first + 2, channel);
  for (int t = 0; t < count; ++t) {
    const float x3 = column(work, sequence, first + t + 3, channel);
    const float value = silu(fmaf(x3, tap.w, fmaf(x2, tap.z, fmaf(x1, tap.y, x0 * tap.x))));
    if (active) out[t * work.channels()] = value;
    const float square = lane_sum(active ? value * value : 0.0f);
    if (threadIdx.x % kWarp == 0) squares[t][warp] = square;
    x0 = x1, x1 = x2, x2 = x3;
  }
  __syncthreads();
  if (unit < 2 * work.k_heads && active) {
    const float scale = unit < work.k_heads ? 1.0f / sqrtf(static_cast<float>(work.dim)) : 1.0f;
    for (int t = 0; t < count; ++t) {
      float sum = squares[t][0];
      for (int w = 1; w < warps; ++w) sum += squares[t][w];
      out[t * work.channels()] *= scale / sqrtf(sum + work.eps);
    }
  }
  // Only a first chunk reads the window, and a thread reads nobody's channels but its own: so it may move them now. A
  // column never lies before its destination.
  if (first || !active) return;
  const int kept = work.commit ? sequence.count() : sequence.pending;
  const int moved = kHistory + (work.commit ? 0 : sequence.own);
  float* window = work.window + int64_t{sequence.slot_out} * (kHistory + work.pending_max) * work.channels() + channel;
  for (int row = 0; row < moved; ++row) window[row * work.channels()] = column(work, sequence, kept + row, channel);
}

// log(1 + e^x), exact at both ends.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float dot(const float* a, const float* b, int dim, int lane) {
  float sum = 0;
  for (int i = lane; i < dim; i += kWarp) sum = fmaf(a[i], b[i], sum);
  return lane_sum(sum);
}

struct Tokens {
  float key[kGroup][kMostDim], query[kGroup][kMostDim], out[kGroup][kMostDim];
  float products[2][2][kRowGroups][kMostDim];  // by turn: with the key, with the query
  float decay[kGroup], beta[kGroup], look[kGroup];
};

// grid: [value heads, sequences]; thread (g, j) holds rows [g R, (g + 1) R) of column j of the state, R = D / 4.
template <int R>
__global__ void __launch_bounds__(R * kRowGroups * kRowGroups) scan(Work work) {
  __shared__ __align__(16) Tokens shared;
  if (!*work.verdict) return;
  constexpr int kDim = R * kRowGroups;
  const Sequence sequence(work, blockIdx.y);
  const int head = blockIdx.x, j = threadIdx.x % kDim, g = threadIdx.x / kDim, lane = threadIdx.x % kWarp;
  const int k_head = work.tiled ? head % work.k_heads : head / (work.v_heads / work.k_heads);
  const int64_t row = work.channels(), at = (int64_t{head} * kDim + g * R) * kDim + j;
  const int64_t size = int64_t{work.v_heads} * kDim * kDim;
  const float* from = work.past_state + sequence.slot_in * size + at;
  float* to = work.state + sequence.slot_out * size + at;
  const float* saved = work.past_gates + int64_t{sequence.slot_in} * work.pending_max * 2 * work.v_heads + head;
  float* gates = work.gates + int64_t{sequence.slot_out} * work.pending_max * 2 * work.v_heads + head;

  float state[R];
#pragma unroll
  for (int r = 0; r < R; ++r) state[r] = sequence.fresh ? 0.0f : from[r * kDim];
  const auto write = [&] {
#pragma unroll
    for (int r = 0; r < R; ++r) to[r * kDim] = state[r];
  };
  if (!work.commit && sequence.pending == 0 && (sequence.fresh || from != to)) write();

  for (int first = 0; first < sequence.count(); first += kGroup) {
    const int count = min(kGroup, sequence.count() - first);
    const float* mixed = work.mixed + (sequence.first + first) * row;
    for (int i = threadIdx.x; i < count * kDim; i += blockDim.x) {
      const float* token = mixed + i / kDim * row + i % kDim;
      shared.query[i / kDim][i % kDim] = token[k_head * kDim];
      shared.key[i / kDim][i % kDim] = token[(work.k_heads + k_head) * kDim];
    }
    float log_decay = 0, beta = -1;
    const int t = first + threadIdx.x, own = t - sequence.pending;  // of the thread's token, when it has one
    if (static_cast<int>(threadIdx.x) < count) {
      if (own < 0) {
        log_decay = saved[int64_t{2 * t} * work.v_heads];
        beta = saved[int64_t{2 * t + 1} * work.v_heads];
      } else {
        const int64_t gate = (sequence.begin + own) * work.v_heads + head;
        log_decay = softplus(work.alpha[gate] + work.dt_bias[head]) * work.a[head];
        beta = sigmoid(work.beta[gate]);
      }
      // Below e^-60 nothing of the old state is left in float32.
      shared.decay[threadIdx.x] = log_decay < -60.0f ? 0.0f : expf(log_decay);
      shared.beta[threadIdx.x] = beta;
    }
    __syncthreads();
    for (int n = threadIdx.x / kWarp; n < count; n += blockDim.x / kWarp) {
      const float look = dot(shared.key[n], shared.query[n], kDim, lane);
      if (lane == 0) shared.look[n] = look;
    }
    __syncthreads();

    for (int n = 0; n < count; ++n) {
      const float *key = shared.key[n] + g * R, *query = shared.query[n] + g * R;
      float with_key = 0, with_query = 0;
#pragma unroll
      for (int r = 0; r < R; r += 4) {
        const float4 k = *reinterpret_cast<const float4*>(key + r), q = *reinterpret_cast<const float4*>(query + r);
        with_key =
            fmaf(k.w, state[r + 3], fmaf(k.z, state[r + 2], fmaf(k.y, state[r + 1], fmaf(k.x, state[r], with_key))));
        with_query =
            fmaf(q.w, state[r + 3], fmaf(q.z, state[r + 2], fmaf(q.y, state[r + 1], fmaf(q.x, state[r], with_query))));
      }
      float (*products)[kRowGroups][kMostDim] = shared.products[n % 2];
      products[0][g][j] = with_key;
      products[1][g][j] = with_query;
      __syncthreads();
      with_key = products[0][0][j];
      with_query = products[1][0][j];
#pragma unroll
      for (int i = 1; i < kRowGroups; ++i) {
        with_key += products[0][i][j];
        with_query += products[1][i][j];
      }
      const float decay = shared.decay[n], value = mixed[n * row + (2 * work.k_heads + head) * kDim + j];
      const float delta = (value - decay * with_key) * shared.beta[n];
      if (g == 0) shared.out[n][j] = fmaf(shared.look[n], delta, decay * with_query);
#pragma unroll
      for (int r = 0; r < R; r += 4) {
        const float4 k = *reinterpret_cast<const float4*>(key + r);
        state[r] = fmaf(k.x, delta, decay * state[r]);
        state[r + 1] = fmaf(k.y, delta, decay * state[r + 1]);
        state[r + 2] = fmaf(k.z, delta, decay * state[r + 2]);
        state[r + 3] = fmaf(k.w, delta, decay * state[r + 3]);
      }
      if (!work.commit && first + n + 1 == sequence.pending) write();
    }
    __syncthreads();

    for (int n = threadIdx.x / kWarp; n < count; n += blockDim.x / kWarp) {
      const int64_t token = first + n - sequence.pending;
      const float* o = shared.out[n];
      const float factor = 1.0f / sqrtf(dot(o, o, kDim, lane) / kDim + work.eps);
      if (token < 0) continue;
      const int64_t to = ((sequence.begin + token) * work.v_heads + head) * kDim;
      for (int i = lane; i < kDim; i += kWarp) work.y[to + i] = o[i] * factor * work.norm[i] * silu(work.z[to + i]);
    }
    __syncthreads();
  }
  if (work.commit) write();
  // What is pending from now on, when all that was saved before has been read.
  for (int t = threadIdx.x; t < work.pending_max; t += blockDim.x) {
    const bool is = !work.commit && t < sequence.own;
    const int64_t gate = (sequence.begin + (is ? t : 0)) * work.v_heads + head;
    gates[int64_t{2 * t} * work.v_heads] = is ? softplus(work.alpha[gate] + work.dt_bias[head]) * work.a[head] : 0.0f;
    gates[int64_t{2 * t + 1} * work.v_heads] = is ? sigmoid(work.beta[gate]) : -1.0f;
  }
}

using Scan = void (*)(Work);
constexpr Scan kScans[] = {scan<4>, scan<8>, scan<12>, scan<16>, scan<20>, scan<24>, scan<28>, scan<32>};

class GatedDeltaNet : public GatedDeltaNetSignature {
 public:
  explicit GatedDeltaNet(const KernelInfo& info) : GatedDeltaNetSignature(info), arena_(info) {}

  void compute(Context& context) {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const Geometry g = geometry(in);
    const int64_t rows = in[kQkv].dims[0], slots = in[kGates].dims[0];
    in[kPastLens].expect({-1});
    const int64_t sequences = in[kPastLens].dims[0];
    in[kCuSeqlens].expect({sequences + 1});
    for (int i : {kAccepted, kSlotsIn, kSlotsOut}) in[i].expect({sequences});
    if (!sequences && rows)
      fail("input past_lens is empty, but the step has %lld tokens", static_cast<long long>(rows));
    if (g.dim > kMostDim)
      fail("input norm has %lld values; heads on a GPU have at most %d", static_cast<long long>(g.dim), kMostDim);
    if (g.pending_max > kChunk - kHistory)
      fail("input past_gates has %lld rows a slot; on a GPU there are at most %d",
           static_cast<long long>(g.pending_max), kChunk - kHistory);

    const Tensor y = context.output(0, {rows, g.v_heads * g.dim}), state = context.output_like(1, in[kState]),
                 window = context.output_like(2, in[kWindow]), gates = context.output_like(3, in[kGates]);
    const cudaStream_t stream = stream_of(context);
    copy_other_buffer(in[kState], state, sizeof(float), stream);
    copy_other_buffer(in[kWindow], window, sizeof(float), stream);
    copy_other_buffer(in[kGates], gates, sizeof(float), stream);

    const Arena::Memory mixed = arena_.take<float>((rows + sequences * g.pending_max) * g.channels());
    const Arena::Memory verdict = arena_.take<int>(1);
    const Work work{in[kQkv].as<float>(),
                    in[kZ].as<float>(),
                    in[kAlpha].as<float>(),
                    in[kBeta].as<float>(),
                    in[kConv].as<float>(),
                    in[kDtBias].as<float>(),
                    in[kA].as<float>(),
                    in[kNorm].as<float>(),
                    in[kState].as<float>(),
                    in[kWindow].as<float>(),
                    in[kGates].as<float>(),
                    state.as<float>(),
                    window.as<float>(),
                    gates.as<float>(),
                    y.as<float>(),
                    in[kCuSeqlens].as<int32_t>(),
                    in[kPastLens].as<int32_t>(),
                    in[kAccepted].as<int32_t>(),
                    in[kSlotsIn].as<int32_t>(),
                    in[kSlotsOut].as<int32_t>(),
                    mixed.as<float>(),
                    verdict.as<int>(),
                    error_record(),
                    rows,
                    static_cast<int>(sequences),
                    static_cast<int>(slots),
                    static_cast<int>(g.k_heads),
                    static_cast<int>(g.v_heads),
                    static_cast<int>(g.dim),
                    static_cast<int>(g.pending_max),
                    g.tiled,
                    g.commit,
                    g.eps};
    // A verify has at most K tokens a sequence, and K pending ones; a prefill may have all its rows in one sequence.
    const int64_t longest = g.commit ? rows : std::min(rows, g.pending_max);
    const int mix_threads = static_cast<int>((g.dim + kWarp - 1) / kWarp * kWarp);
    const auto count = static_cast<unsigned>(sequences);
    launch(mix, dim3(static_cast<unsigned>(g.units()), blocks_of(longest + g.pending_max, kChunk), count), mix_threads,
           0, stream, work);
    launch(kScans[g.dim / 16 - 1], dim3(static_cast<unsigned>(g.v_heads), count), static_cast<int>(kRowGroups * g.dim),
           0, stream, work);
  }

 private:
  Arena arena_;
};

}  // namespace

const OrtCustomOp* gated_delta_net() {
  static const Op<Checked<GatedDeltaNet>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
