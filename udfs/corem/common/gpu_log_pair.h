//===- gpu_log_pair.h - Logarithms of pairs on GPUs -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(f + e) in pairs of floats, |e| at most some units in the last place of f,
// with tables of 64 entries. No conversion to double is needed.
//
// f = 2^k m, and c is near to 1 / m, so that |r| < 2^-6.7 where r is m c,
// rounded, less 1. With s = 2^-k c e and what the rounding lost:
//
//   log(f + e) = k log(2) - log(c) + log(1 + r + s)
//
// The high part of k log(2) - log(c) is exact. Its sum with r is rounded once,
// and the error is kept.
//
// Error. The roundings of r + s, of its square, of the polynomial and of the
// sum with the low part are in proportion to r^2, that of k log(2) to k, and
// the rest is constant. The rounding test adds the three; half of its width is
// 4 2^-24 r^2 + 1.5 2^-41 k + 1.5 2^-40. The headers of the functions say how
// large errors were. Half of the width is in the constants.
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
  float base =
      __builtin_fmaf(times, UDF_GPU_LOG_PAIR_TWO_HI, udf_gpu_log_pair[1][i]);
  float low =
      __builtin_fmaf(times, UDF_GPU_LOG_PAIR_TWO_LO, udf_gpu_log_pair[2][i]);
  float high = base + r;
  low = (low + s) + (r - (high - base));
  float w = r + s;
  float q = __builtin_fmaf(w, UDF_GPU_LOG_PAIR_C4, UDF_GPU_LOG_PAIR_C3);
  q = __builtin_fmaf(w, q, UDF_GPU_LOG_PAIR_C2);
  float square = w * w;
  low = __builtin_fmaf(square, q, low);
  float width =
      __builtin_fmaf(times, UDF_GPU_LOG_PAIR_EACH, UDF_GPU_LOG_PAIR_REST);
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
