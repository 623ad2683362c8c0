// The passes in AVX2.
#include "problem.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
namespace avx2 {
constexpr int kVectorBytes = 32;
#define WIDE_HALVES 8
INLINE __m256 widen_halves(uint16_t __attribute__((vector_size(16))) half) { return _mm256_cvtph_ps((__m128i)half); }
#include "passes.h"
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
