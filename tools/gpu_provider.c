// Preloaded beside a CUDA provider of ONNX Runtime that gpu_provider.py has made small: the CUDA runtime reads a fat
// binary when it is registered, so those that were removed are not. All other registrations pass.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

static void* removed[1];  // the handle of all that were

static void* runtime(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  return found ? found : dlsym(dlopen("libcudart.so.13", RTLD_NOW), name);
}

void** __cudaRegisterFatBinary(void* wrapper) {
  const uint32_t* binary = ((void**)wrapper)[1];
  if (binary && !*binary) return removed;  // no magic number
  return ((void** (*)(void*))runtime("__cudaRegisterFatBinary"))(wrapper);
}

void __cudaRegisterFatBinaryEnd(void** of) {
  if (of != removed) ((void (*)(void**))runtime("__cudaRegisterFatBinaryEnd"))(of);
}

void __cudaUnregisterFatBinary(void** of) {
  if (of != removed) ((void (*)(void**))runtime("__cudaUnregisterFatBinary"))(of);
}

void __cudaRegisterFunction(void** of, const char* host, char* device, const char* name, int threads, void* thread,
                            void* block, void* size, void* grid, int* warp) {
  typedef void (*Register)(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
  Register next = (Register)runtime("__cudaRegisterFunction");
  if (of != removed) next(of, host, device, name, threads, thread, block, size, grid, warp);
}

void __cudaRegisterVar(void** of, char* host, char* device, const char* name, int external, size_t size, int constant,
                       int global) {
  typedef void (*Register)(void**, char*, char*, const char*, int, size_t, int, int);
  Register next = (Register)runtime("__cudaRegisterVar");
  if (of != removed) next(of, host, device, name, external, size, constant, global);
}
