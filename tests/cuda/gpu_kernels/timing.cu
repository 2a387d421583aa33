#include <algorithm>
#include <chrono>

#include "../../../custom_ops/cuda/platform.cuh"
#include "trial.h"

namespace gpu_kernels {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

#if defined(__CUDACC__)

using trigraph::cuda::check;

namespace {

constexpr double kGraph = 2e-3, kAll = 40e-3;  // seconds of a replay and of all, about

// `count` calls, to be replayed.
cudaGraphExec_t captured(const std::function<void(uint64_t)>& call, uint64_t count, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replayed = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "the begin of a capture");
  for (uint64_t n = 0; n < count; ++n) call(n);
  check(cudaStreamEndCapture(stream, &graph), "the end of a capture");
  check(cudaGraphInstantiateWithFlags(&replayed, graph, 0), "a graph");
  check(cudaGraphDestroy(graph), "a graph");
  return replayed;
}

}  // namespace

double median_microseconds(const std::function<void(uint64_t)>& call, uint64_t different, void* on) {
  const auto stream = static_cast<cudaStream_t>(on);
  for (uint64_t n = 0; n < different; ++n) call(n);  // makes what first calls make
  wait(stream);
  const double started = seconds();
  for (uint64_t n = 0; n < different; ++n) call(n);
  wait(stream);
  const double round = seconds() - started;
  const auto rounds = static_cast<uint64_t>(std::max(1.0, std::min(kGraph / round, 64.0 / different)));
  const auto replays = static_cast<size_t>(std::max(5.0, std::min(kAll / (round * rounds), 50.0)));
  const cudaGraphExec_t graph = captured(call, different * rounds, stream);
  check(cudaGraphLaunch(graph, stream), "a graph");
  std::vector<cudaEvent_t> points(replays + 1);
  for (size_t i = 0; i <= replays; ++i) {
    check(cudaEventCreate(&points[i]), "an event");
    check(cudaEventRecord(points[i], stream), "an event");
    if (i < replays) check(cudaGraphLaunch(graph, stream), "a graph");
  }
  wait(stream);
  std::vector<float> milliseconds(replays);
  for (size_t i = 0; i < replays; ++i)
    check(cudaEventElapsedTime(&milliseconds[i], points[i], points[i + 1]), "times of events");
  for (cudaEvent_t point : points) (void)cudaEventDestroy(point);
  (void)cudaGraphExecDestroy(graph);
  std::nth_element(milliseconds.begin(), milliseconds.begin() + replays / 2, milliseconds.end());
  return 1e3 * milliseconds[replays / 2] / static_cast<double>(different * rounds);
}

#else

// The emulator has no graphs, and its times mean nothing.
double median_microseconds(const std::function<void(uint64_t)>& call, uint64_t different, void* stream) {
  const double started = seconds();
  for (uint64_t n = 0; n < different; ++n) call(n);
  wait(stream);
  return 1e6 * (seconds() - started) / static_cast<double>(different);
}

#endif

}  // namespace gpu_kernels
