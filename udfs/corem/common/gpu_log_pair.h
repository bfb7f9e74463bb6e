//===- gpu_log_pair.h - Logarithms of pairs on GPUs -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(f + e) in pairs of floats, |e| at most some units in the last place of f,
// with tables of 32 entries. No conversion to double is needed: these go
// through the unit of the approximations, which takes four lanes of a warp at a
// time. A table is 128 bytes, a line of the cache: a warp reads 32 entries of
// it at a time.
//
// f = 2^k m, and c is a reciprocal of m of so few bits that r = m c - 1 is
// exact, |r| < 2^-5.6. With s = 2^-k c e:
//
//   log(f + e) = k log(2) - log(c) + log(1 + r + s)
//
// The high part of k log(2) - log(c) is exact. Its sum with r is rounded once,
// and the error is kept.
//
// Error. Rounding r + s, its square, the polynomial and the sum with the low
// part errs by 2^-24 r^2 at most, k log(2) by less than 2^-42 k, and the rest
// by less than 2^-42. The rounding test adds the three.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_LOG_PAIR_H
#define UDF_GPU_LOG_PAIR_H

#include "gpu.h"

#include "gpu_log_pair_constants.h"

// log(f + e), rounded where it is not hard.
UDF_INLINE float udf_gpu_log_of_pair(float f, float e, int *hard) {
  uint32_t u = udf_f32_bits(f);
  uint32_t offset = u - UDF_GPU_LOG_PAIR_START;
  uint32_t k = offset & UINT32_C(0xff800000);
  uint32_t i = (offset >> UDF_GPU_LOG_PAIR_SHIFT) % UDF_GPU_LOG_PAIR_STEPS;
  float c = udf_gpu_log_pair[0][i];
  float times = (float)(int32_t)k;
  float m = udf_f32_from_bits(u - k);
  float product = m * c;
  float r = product - 1.0f;
  float s = __builtin_fmaf(e, udf_f32_from_bits(udf_f32_bits(c) - k),
                           __builtin_fmaf(m, c, -product));
  float base = __builtin_fmaf(times, UDF_GPU_LOG_PAIR_TWO_HI,
                              udf_gpu_log_pair[1][i]);
  float low = __builtin_fmaf(times, UDF_GPU_LOG_PAIR_TWO_LO,
                             udf_gpu_log_pair[2][i]);
  float high = base + r;
  low = (low + s) + (r - (high - base));
  float w = r + s;
  float q = __builtin_fmaf(w, UDF_GPU_LOG_PAIR_C4, UDF_GPU_LOG_PAIR_C3);
  q = __builtin_fmaf(w, q, UDF_GPU_LOG_PAIR_C2);
  float square = w * w;
  low = __builtin_fmaf(square, q, low);
  float width = __builtin_fmaf(times, UDF_GPU_LOG_PAIR_EACH,
                               UDF_GPU_LOG_PAIR_REST);
  width = __builtin_fmaf(square, UDF_GPU_LOG_PAIR_SQUARE, width);
#ifdef UDF_GPU_WATCH_PAIR
  UDF_GPU_WATCH_PAIR(high, low, width);
#endif
  float lower = high + low;
  // Written so that NaN is hard.
  *hard = !(lower == high + (low + width));
  return lower;
}

// Whether the square of a is so large that adding 1 is not exact, and so small
// that 1 counts.
UDF_INLINE int udf_gpu_loses_one(float a) {
  return udf_f32_bits(a) - UINT32_C(0x45800000) < UINT32_C(0x03800000);
}

#endif // UDF_GPU_LOG_PAIR_H
