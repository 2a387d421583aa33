// The entry points that capture a stream as a graph, and replay it.
#include <atomic>

#include "cudart.h"

using namespace fake_cuda;

namespace {

std::atomic<void (*)()> in_captures{nullptr};

}  // namespace

FAKE_CUDA_API void fake_cuda_in_captures(void (*called)()) { in_captures = called; }

FAKE_CUDA_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Guard guard(device().lock);
  const auto& capture = device().stream(stream).capture;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : !capture->broken ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int) {
  {
    const Guard guard(device().lock);
    if (!stream || device().stream(stream).capture) return device().refuse("a capture");
    device().note("capture");
    device().stream(stream).capture = std::make_unique<Graph>();
  }
  if (void (*called)() = in_captures) called();
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, Graph** graph) {
  const Guard guard(device().lock);
  std::unique_ptr<Graph> capture = std::move(device().stream(stream).capture);
  *graph = nullptr;
  if (!capture) return cudaErrorInvalidValue;
  device().note(capture->broken ? "capture breaks off" : "capture ends");
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  *graph = capture.release();
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaGraphInstantiate(Graph** executable, Graph* graph, unsigned long long) {
  *executable = new Graph(*graph);
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaGraphLaunch(Graph* graph, cudaStream_t stream) {
  const Guard guard(device().lock);
  device().note("replay " + std::to_string(graph->kernels));
  for (const Work& work : graph->work)
    if (const cudaError_t error = device().enqueue(stream, work)) return error;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaGraphDestroy(Graph* graph) {
  delete graph;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaGraphExecDestroy(Graph* executable) {
  const Guard guard(device().lock);
  device().note("graph destroyed");
  delete executable;
  return cudaSuccess;
}
