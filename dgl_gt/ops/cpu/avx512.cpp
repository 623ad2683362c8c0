// The passes in AVX-512.
#include "problem.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#endif
namespace avx512 {
constexpr int kVectorBytes = 64;
#define WIDE_HALVES 16
INLINE __m512 widen_halves(uint16_t __attribute__((vector_size(32))) half) { return _mm512_maskz_cvtph_ps(0xFFFF, (__m256i)half); }
#include "passes.h"
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
