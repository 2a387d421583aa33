#include "isa.h"

#include <initializer_list>

#if defined(_M_X64) && defined(_MSC_VER)
#include <intrin.h>
#elif defined(__x86_64__)
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
  const HostExperts* host_experts();           \
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
// By the instruction itself: __builtin_cpu_supports needs a runtime library that Windows lacks, and Clang's knows fewer
// names than GCC's.
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  Cpuid(unsigned leaf, unsigned subleaf) {
#if defined(_MSC_VER)
    int out[4];
    __cpuid(out, 0);
    if (static_cast<unsigned>(out[0]) < leaf) return;
    __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
    eax = out[0], ebx = out[1], ecx = out[2], edx = out[3];
#else
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
#endif
  }
};
constexpr bool all_of(unsigned bits, std::initializer_list<int> wanted) {
  for (int bit : wanted)
    if (!(bits >> bit & 1)) return false;
  return true;
}
// The registers that the system keeps for each thread.
unsigned kept_registers() {
  if (!all_of(Cpuid(1, 0).ecx, {27})) return 0;  // OSXSAVE
#if defined(_MSC_VER)
  return static_cast<unsigned>(_xgetbv(0));
#else
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
#endif
}

bool has_avx2() {  // FMA, AVX, F16C; AVX2, BMI2
  return all_of(kept_registers(), {1, 2}) && all_of(Cpuid(1, 0).ecx, {12, 28, 29}) && all_of(Cpuid(7, 0).ebx, {5, 8});
}
bool has_avx_vnni() { return has_avx2() && all_of(Cpuid(7, 1).eax, {4}); }
bool has_avx512() {  // F, DQ, BW, VL; VBMI, GFNI, VNNI
  const Cpuid seven(7, 0);
  return has_avx2() && all_of(kept_registers(), {5, 6, 7}) && all_of(seven.ebx, {16, 17, 30, 31}) &&
         all_of(seven.ecx, {1, 8, 11});
}
const InstructionSet kAvx512{"avx512", has_avx512, avx512::operators, avx512::probe_products, avx512::host_experts};
const InstructionSet kAvxVnni{"avx_vnni", has_avx_vnni, avx_vnni::operators, avx_vnni::probe_products,
                              avx_vnni::host_experts};
const InstructionSet kAvx2{"avx2", has_avx2, avx2::operators, avx2::probe_products, avx2::host_experts};
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
const InstructionSet kI8mm{"i8mm", has_i8mm, i8mm::operators, i8mm::probe_products, i8mm::host_experts};
const InstructionSet kDotprod{"dotprod", has_dotprod, dotprod::operators, dotprod::probe_products,
                              dotprod::host_experts};
const InstructionSet kNeon{"neon", always, neon::operators, neon::probe_products, neon::host_experts};
#endif
const InstructionSet kPortable{"portable", always, portable::operators, portable::probe_products,
                               portable::host_experts};

}  // namespace

std::vector<const InstructionSet*> known_sets() {
#if defined(__x86_64__) || defined(_M_X64)
  return {&kAvx512, &kAvxVnni, &kAvx2, &kPortable};
#elif defined(__aarch64__)
  return {&kI8mm, &kDotprod, &kNeon, &kPortable};
#else
  return {&kPortable};
#endif
}

std::vector<const InstructionSet*> instruction_sets(bool held) {
  std::vector<const InstructionSet*> found;
  for (const InstructionSet* set : known_sets())
    if (set->supported() && set->operators().empty() != held) found.push_back(set);
  return found;
}

}  // namespace trigraph
