#include "kernels/cpu/simd/isa.h"

#include <algorithm>
#include <atomic>
#include <dnnl.hpp>
#if defined(__x86_64__)
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/backend.h"

namespace gt::cpu {
namespace {

// One choice per process, made at startup before any kernel runs: a property of the machine, not state of a run.
std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

// Limits oneDNN's instruction set; kAuto: to none. oneDNN fixes the limit at first use; a later change has no effect,
// which is still correct.
void limit_onednn(Isa isa) {
  auto to = dnnl::cpu_isa::all;
  switch (isa) {
    case Isa::kAuto: break;
    case Isa::kScalar: to = dnnl::cpu_isa::sse41; break;
    case Isa::kAvx2: to = dnnl::cpu_isa::avx2; break;
    case Isa::kAvx512: to = dnnl::cpu_isa::avx512_core_vnni; break;
    case Isa::kAvx512Bf16: to = dnnl::cpu_isa::avx512_core_bf16; break;
    case Isa::kAmx: to = dnnl::cpu_isa::avx512_core_amx; break;
  }
  (void)dnnl::set_max_cpu_isa(to);
}

std::string supported_names() {
  std::string out;
  for (const char* name : names_of(Isa())) {
    out += (out.empty() ? "" : ", ") + std::string(name);
    if (name == std::string_view(name_of(best_isa()))) break;
  }
  return out;
}

#if defined(__x86_64__)
// Bits of leaf 7 (Intel SDM, CPUID), which clang 14's __builtin_cpu_supports has no names for.
bool has_tiles() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}
// Linux grants the tile registers to a process that requests them; threads created later have them too.
bool may_use_tiles() {
  constexpr long kTileData = 18;  // the state component of XCR0
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
}

Isa find_best() {  // __builtin_cpu_supports also checks that the OS saves the register state
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return has_tiles() && may_use_tiles() ? Isa::kAmx : Isa::kAvx512Bf16;
}
#else
Isa find_best() { return Isa::kScalar; }  // of four lanes: what the compiler makes of them
#endif

}  // namespace

Isa best_isa() {
#ifdef GPT_MAX_ISA
  static const Isa best = std::min(find_best(), Isa::GPT_MAX_ISA);
#else
  static const Isa best = find_best();
#endif
  return best;
}

Isa current_isa() { return chosen().load(std::memory_order_relaxed); }

bool multiplies_bf16() {
  if (current_isa() < Isa::kAvx512Bf16) return false;
  static const bool onednn_too = [] {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }();
  return onednn_too;
}

}  // namespace gt::cpu

namespace gt {

void set_cpu_isa(CpuIsa isa) {
  const CpuIsa best = cpu::best_isa();
  GT_REQUIRE(isa <= best, Exit::kUsage, "instruction set ", name_of(isa),
             ": this processor lacks it; it has: ", cpu::supported_names());
  cpu::chosen() = isa == CpuIsa::kAuto ? best : isa;
  cpu::limit_onednn(isa);
}

std::string cpu_isa() { return name_of(cpu::current_isa()); }

}  // namespace gt
