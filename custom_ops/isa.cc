#include "isa.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace trigraph {

#define TRIGRAPH_DECLARE(isa)                  \
  namespace isa {                              \
  std::vector<const OrtCustomOp*> operators(); \
  int64_t probe_products(bool int8, int64_t);  \
  }
TRIGRAPH_DECLARE(portable)
#if defined(__x86_64__) || defined(_M_X64)
TRIGRAPH_DECLARE(avx2)
TRIGRAPH_DECLARE(avx_vnni)
TRIGRAPH_DECLARE(avx512)
#elif defined(__aarch64__)
TRIGRAPH_DECLARE(neon)
TRIGRAPH_DECLARE(dotprod)
TRIGRAPH_DECLARE(i8mm)
#endif

namespace {

bool always() { return true; }

#if defined(__x86_64__) || defined(_M_X64)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx_vnni() {
  unsigned eax = 0, ebx, ecx, edx;
  return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1 << 4);
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni");
}
const InstructionSet kAvx512{"avx512", has_avx512, avx512::operators, avx512::probe_products};
const InstructionSet kAvxVnni{"avx_vnni", has_avx_vnni, avx_vnni::operators, avx_vnni::probe_products};
const InstructionSet kAvx2{"avx2", has_avx2, avx2::operators, avx2::probe_products};
#elif defined(__aarch64__)
#if defined(__linux__)
bool has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_i8mm() {
  constexpr unsigned long kBit = 1 << 13;  // HWCAP2_I8MM, which older headers lack
  return has_dotprod() && (getauxval(AT_HWCAP2) & kBit) != 0;
}
#elif defined(__APPLE__)
bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif
const InstructionSet kI8mm{"i8mm", has_i8mm, i8mm::operators, i8mm::probe_products};
const InstructionSet kDotprod{"dotprod", has_dotprod, dotprod::operators, dotprod::probe_products};
const InstructionSet kNeon{"neon", always, neon::operators, neon::probe_products};
#endif
const InstructionSet kPortable{"portable", always, portable::operators, portable::probe_products};

}  // namespace

std::vector<const InstructionSet*> instruction_sets() {
#if defined(__x86_64__) || defined(_M_X64)
  return {&kAvx512, &kAvxVnni, &kAvx2, &kPortable};
#elif defined(__aarch64__)
  return {&kI8mm, &kDotprod, &kNeon, &kPortable};
#else
  return {&kPortable};
#endif
}

}  // namespace trigraph
