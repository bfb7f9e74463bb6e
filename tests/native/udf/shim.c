//===- shim.c - What ctypes cannot call, and what the forms must equal ----===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Compiled without the plugin. shim_<name>[_v<lanes>](n, in..., out) calls a
// form on consecutive groups of lanes with the registers that C compilers use;
// reference_<name> calls the author's functions one element at a time.
//
//===----------------------------------------------------------------------===//

#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

// The author's external functions exist in both objects of the library.
#define udf_exp_quick reference_exp_quick
#define udf_exp_fast reference_exp_fast
#define udf_exp_accurate reference_exp_accurate
#include "probe.h"

#define EXPORT __attribute__((visibility("default")))
#define ONE_BY_ONE _Pragma("clang loop vectorize(disable) unroll(disable)")

#define SHIM1(name, lanes, T, V, load, store)                                  \
  V __udf_##name(V);                                                           \
  EXPORT void shim_##name(int64_t n, const T *a, T *out) {                     \
    ONE_BY_ONE for (int64_t i = 0; i < n; i += lanes)                          \
        store(out + i, __udf_##name(load(a + i)));                             \
  }
#define SHIM2(name, lanes, T, V, load, store)                                  \
  V __udf_##name(V, V);                                                        \
  EXPORT void shim_##name(int64_t n, const T *a, const T *b, T *out) {         \
    ONE_BY_ONE for (int64_t i = 0; i < n; i += lanes)                          \
        store(out + i, __udf_##name(load(a + i), load(b + i)));                \
  }
#define LOAD(p) (*(p))
#define STORE(p, y) (*(p) = (y))

SHIM1(expf, 1, float, float, LOAD, STORE)
SHIM1(lookupf, 1, float, float, LOAD, STORE)
SHIM1(exp, 1, double, double, LOAD, STORE)
SHIM2(hypotf, 1, float, float, LOAD, STORE)
SHIM2(hypot, 1, double, double, LOAD, STORE)
SHIM1(stepf, 1, float, float, LOAD, STORE)
SHIM2(step, 1, double, double, LOAD, STORE)

#ifdef __AVX2__
SHIM1(expf_v8, 8, float, __m256, _mm256_loadu_ps, _mm256_storeu_ps)
SHIM1(lookupf_v8, 8, float, __m256, _mm256_loadu_ps, _mm256_storeu_ps)
SHIM1(exp_v4, 4, double, __m256d, _mm256_loadu_pd, _mm256_storeu_pd)
SHIM2(hypotf_v8, 8, float, __m256, _mm256_loadu_ps, _mm256_storeu_ps)
SHIM2(hypot_v4, 4, double, __m256d, _mm256_loadu_pd, _mm256_storeu_pd)
SHIM1(stepf_v8, 8, float, __m256, _mm256_loadu_ps, _mm256_storeu_ps)
SHIM2(step_v4, 4, double, __m256d, _mm256_loadu_pd, _mm256_storeu_pd)
#endif
#ifdef __AVX512F__
SHIM1(expf_v16, 16, float, __m512, _mm512_loadu_ps, _mm512_storeu_ps)
SHIM1(lookupf_v16, 16, float, __m512, _mm512_loadu_ps, _mm512_storeu_ps)
SHIM1(exp_v8, 8, double, __m512d, _mm512_loadu_pd, _mm512_storeu_pd)
SHIM2(hypotf_v16, 16, float, __m512, _mm512_loadu_ps, _mm512_storeu_ps)
SHIM2(hypot_v8, 8, double, __m512d, _mm512_loadu_pd, _mm512_storeu_pd)
SHIM1(stepf_v16, 16, float, __m512, _mm512_loadu_ps, _mm512_storeu_ps)
SHIM2(step_v8, 8, double, __m512d, _mm512_loadu_pd, _mm512_storeu_pd)
#endif

#ifdef __aarch64__
SHIM1(expf_v4, 4, float, float32x4_t, vld1q_f32, vst1q_f32)
SHIM1(lookupf_v4, 4, float, float32x4_t, vld1q_f32, vst1q_f32)
SHIM1(exp_v2, 2, double, float64x2_t, vld1q_f64, vst1q_f64)
SHIM2(hypotf_v4, 4, float, float32x4_t, vld1q_f32, vst1q_f32)
SHIM2(hypot_v2, 2, double, float64x2_t, vld1q_f64, vst1q_f64)
SHIM1(stepf_v4, 4, float, float32x4_t, vld1q_f32, vst1q_f32)
SHIM2(step_v2, 2, double, float64x2_t, vld1q_f64, vst1q_f64)
#endif

#define REFERENCE1(name, T, Y)                                                 \
  EXPORT void reference_##name(int64_t n, const T *a, T *out) {                \
    ONE_BY_ONE for (int64_t i = 0; i < n; ++i) {                               \
      T x = a[i];                                                              \
      out[i] = (Y);                                                            \
    }                                                                          \
  }
#define REFERENCE2(name, T, Y)                                                 \
  EXPORT void reference_##name(int64_t n, const T *a, const T *b, T *out) {    \
    ONE_BY_ONE for (int64_t i = 0; i < n; ++i) {                               \
      T x = a[i], y = b[i];                                                    \
      out[i] = (Y);                                                            \
    }                                                                          \
  }
#define TWO_STEP(fast, accurate)                                               \
  ({                                                                           \
    int hard;                                                                  \
    __typeof__(x) quick = fast;                                                \
    hard ? accurate : quick;                                                   \
  })

REFERENCE1(expf, float, TWO_STEP(udf_expf_fast(x, &hard), udf_expf_accurate(x)))
REFERENCE1(lookupf, float,
           TWO_STEP(udf_lookupf_fast(x, &hard), udf_lookupf_accurate(x)))
REFERENCE1(exp, double, TWO_STEP(udf_exp_fast(x, &hard), udf_exp_accurate(x)))
REFERENCE2(hypotf, float,
           TWO_STEP(udf_hypotf_fast(x, y, &hard), udf_hypotf_accurate(x, y)))
REFERENCE2(hypot, double,
           TWO_STEP(udf_hypot_fast(x, y, &hard), udf_hypot_accurate(x, y)))
REFERENCE1(stepf, float, udf_stepf(x))
REFERENCE2(step, double, udf_step(x, y))
