#include "kernels/cpu/simd/isa.h"

#include <atomic>
#include <dnnl.hpp>

#include "kernels/backend.h"

namespace gt::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "avx512_bf16"};

// One choice per process, made at startup before any kernel runs: a property of the machine, not state of a run.
std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

// Limits oneDNN's instruction set. oneDNN fixes the limit at first use; a later change has no effect, which is still
// correct.
void limit_onednn(Isa isa, bool limit) {
  auto to = dnnl::cpu_isa::all;
  if (limit) {
    switch (isa) {
      case Isa::kScalar: to = dnnl::cpu_isa::sse41; break;
      case Isa::kAvx2: to = dnnl::cpu_isa::avx2; break;
      case Isa::kAvx512: to = dnnl::cpu_isa::avx512_core_vnni; break;
      case Isa::kAvx512Bf16: to = dnnl::cpu_isa::avx512_core_bf16; break;
    }
  }
  (void)dnnl::set_max_cpu_isa(to);
}

}  // namespace

Isa best_isa() {
  static const Isa best = [] {  // __builtin_cpu_supports also checks that the OS saves the register state
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kScalar;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!avx512) return Isa::kAvx2;
    return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }();
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

const char* name_of(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

}  // namespace gt::cpu

namespace gt {

void set_cpu_isa(const std::string& name_or_auto) {
  using namespace cpu;
  const Isa best = best_isa();
  if (name_or_auto == "auto") {
    chosen() = best;
    limit_onednn(best, false);
    return;
  }
  std::string have = "auto";
  for (Isa isa : kAll) {
    if (isa > best) break;
    have += cat(", ", name_of(isa));
    if (name_or_auto == name_of(isa)) {
      chosen() = isa;
      limit_onednn(isa, true);
      return;
    }
  }
  for (Isa isa : kAll) {
    GT_REQUIRE(name_or_auto != name_of(isa), Exit::kUsage, "instruction set ", name_or_auto,
               ": this processor lacks it; it has: ", have);
  }
  fail(Exit::kUsage, "instruction set '", name_or_auto, "' is unknown; this processor has: ", have);
}

std::string cpu_isa() { return cpu::name_of(cpu::current_isa()); }

}  // namespace gt
