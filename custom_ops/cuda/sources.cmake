# Every source of the CUDA library; the emulator of the tests compiles the same ones.
set(CUDA_SOURCES
  operators.cc
  cuda/library.cu
  cuda/memory.cu
  cuda/device_error.cu
  blocks/products.cu
  blocks/few_products.cu
  block_matmul/cuda.cu
  block_gather/cuda.cu
  gated_delta_net/cuda.cu
  grouped_expert_ffn/cuda.cu
  rms_norm/cuda.cu
  router/cuda.cu
  rows/cuda.cu
  top_token/cuda.cu
  paged_attention/cuda.cu
  paged_attention/kv_write.cu)
