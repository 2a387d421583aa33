// Marks a function that the CPU and a device both run.
#pragma once

#if defined(__CUDACC__)
#define TRIGRAPH_EVERYWHERE __host__ __device__
#else
#define TRIGRAPH_EVERYWHERE
#endif
