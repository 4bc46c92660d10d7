// Vectorized loads and stores of V elements as floats, for any storage type. Requires: addresses are multiples of
// min(16, V * sizeof(T)) bytes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace gt::cuda {

// Conversions between storage types and f32.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// x rounded to T: the value read back after a store.
template <class T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// The same for V values. 16-bit types convert two at once, in a quarter of the time.
template <class T, int V>
__device__ inline void round_all(float (&v)[V]) {
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
#pragma unroll
    for (int j = 0; j < V; j += 2) {
      float2 both = make_float2(v[j], v[j + 1]);
      if constexpr (std::is_same_v<T, __nv_bfloat16>)
        both = __bfloat1622float2(__float22bfloat162_rn(both));
      else
        both = __half22float2(__float22half2_rn(both));
      v[j] = both.x;
      v[j + 1] = both.y;
    }
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = rounded<T>(v[j]);
  }
}

// Unsigned word of a memory access.
template <int Bytes>
struct WordOf;
template <>
struct WordOf<16> {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<2> {
  using type = uint16_t;
};

// Elements per memory access when V elements of T are loaded or stored.
template <class T, int V>
constexpr int kPerAccess = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;

template <class T, int V>
using WordFor = typename WordOf<kPerAccess<T, V> * sizeof(T)>::type;

// Unpacks one access into elements j and on.
template <class T, int V>
__device__ inline void unpack(WordFor<T, V> word, float (&out)[V], int j) {
  T x[kPerAccess<T, V>];
  __builtin_memcpy(static_cast<void*>(x), &word, sizeof(word));
#pragma unroll
  for (int t = 0; t < kPerAccess<T, V>; ++t) out[j + t] = to_float(x[t]);
}

// Loads V elements as floats.
template <int V, class T>
__device__ inline void load(const T* p, float (&out)[V]) {
#pragma unroll
  for (int j = 0; j < V; j += kPerAccess<T, V>) unpack<T>(*reinterpret_cast<const WordFor<T, V>*>(p + j), out, j);
}

// V elements as raw words: a load in flight takes as many registers as it has bytes / 4.
template <int V, class T>
struct Stored {
  WordFor<T, V> words[V / kPerAccess<T, V>];

  __device__ void load(const T* p) {
#pragma unroll
    for (int j = 0; j < V; j += kPerAccess<T, V>)
      words[j / kPerAccess<T, V>] = *reinterpret_cast<const WordFor<T, V>*>(p + j);
  }
  __device__ void get(float (&out)[V]) const {
#pragma unroll
    for (int j = 0; j < V; j += kPerAccess<T, V>) unpack<T>(words[j / kPerAccess<T, V>], out, j);
  }
};

// Stores V floats, rounded to T.
template <int V, class T>
__device__ inline void store(T* p, const float (&in)[V]) {
  constexpr int kN = kPerAccess<T, V>;
  using Word = WordFor<T, V>;
#pragma unroll
  for (int j = 0; j < V; j += kN) {
    T x[kN];
#pragma unroll
    for (int t = 0; t < kN; ++t) x[t] = from_float<T>(in[j + t]);
    Word word;
    __builtin_memcpy(&word, static_cast<const void*>(x), sizeof(word));
    *reinterpret_cast<Word*>(p + j) = word;
  }
}

// store() to global memory in explicit instructions: the compiler may split an assignment through a running pointer.
// Acts as a compiler barrier, which costs registers: used only where resources.txt shows the need.
template <int V, class T>
__device__ inline void store_at_once(T* p, const float (&in)[V]) {
#ifdef __CUDA_ARCH__
  constexpr int kWords = kPerAccess<T, V> * sizeof(T) / 4;
  if constexpr (kWords == 4 || kWords == 2) {
#pragma unroll
    for (int j = 0; j < V; j += kPerAccess<T, V>) {
      T x[kPerAccess<T, V>];
#pragma unroll
      for (int t = 0; t < kPerAccess<T, V>; ++t) x[t] = from_float<T>(in[j + t]);
      uint32_t w[kWords];
      __builtin_memcpy(w, static_cast<const void*>(x), sizeof w);
      if constexpr (kWords == 4)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p + j)), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
      else
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p + j)), "r"(w[0]), "r"(w[1])
                     : "memory");
    }
    return;
  }
#endif
  store<V>(p, in);
}

// Asynchronous 16-byte copy from global to shared memory, bypassing registers; both addresses 16-byte aligned. Complete
// for this thread after wait_copies<N>, which waits for all but the last N commits; for other threads after a barrier
// too.
__device__ inline void copy_async16(void* shared, const void* global) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(__cvta_generic_to_global(global))
      : "memory");
#elif defined(GT_EMULATED)
  gt::emulated::copy_later(shared, global);
#endif
}
__device__ inline void commit_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(GT_EMULATED)
  gt::emulated::commit_copies();
#endif
}
template <int N>
__device__ inline void wait_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#elif defined(GT_EMULATED)
  gt::emulated::wait_copies(N);
#endif
}

// e^x by the special function unit: relative error below 2^-20 for x in [-10, 0]; subnormal results flush to 0.
__device__ inline float exp_down(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2e));
  return y;
#else
  return std::exp2(x * kLog2e);
#endif
}

}  // namespace gt::cuda
