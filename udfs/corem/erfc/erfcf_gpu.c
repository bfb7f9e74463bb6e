//===- erfcf_gpu.c - Correctly rounded float32 erfc on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in erfcf_wide.c, exp(log(erfc(x))) in pairs of floats with tables of 32
// entries. A table is 128 bytes, a line of the cache: a warp reads 32 entries
// of it at a time. The value at a center is any float; there is no column that
// counts steps of the exponential.
//
// Error, relative, in units of 2^-38, measured on every 331st argument: 4 from
// 1/2 on, but for 5.3 in the last interval, 5.5 around 0, 9.4 from 0.16 to 0.48
// and 10.1 from -0.46 to -0.16, where the rounding of the terms from r^3 on
// counts most. Half of the width is 11. It is not twice the error: all
// operations are those of IEEE 754, no approximation of the GPU is among them,
// and a run of all 2^32 arguments on a CPU found no wrong result. One argument
// in 1,000 is left to the fast path, and all from 9.14 on.
//
//===----------------------------------------------------------------------===//

#include "erfcf.c"

#include "gpu_constants.h"

// In the last interval, that of hard arguments.
#define ERFC_GPU_LAST 0x1.34p+3f
// Steps of 2^(1/32), as in exp_quick.h.
#define ERFC_GPU_INV_STEP 0x1.715476p5f
#define ERFC_GPU_STEP_HI 0x1.62e43p-6f
#define ERFC_GPU_STEP_LO -0x1.05c61p-34f
#define ERFC_GPU_C3 0x1.5555c8p-3f
#define ERFC_GPU_C4 0x1.5555acp-5f

#define ERFC_GPU_ENTRY(column, i) udf_gpu_erfc[UDF_GPU_ERFC_##column][i]

UDF_INLINE float udf_erfcf_gpu(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > ERFC_GPU_LAST ? ERFC_GPU_LAST : x;
  c = c < UDF_GPU_ERFC_FIRST ? UDF_GPU_ERFC_FIRST : c;
  float b = __builtin_fmaf(c, -UDF_GPU_ERFC_BEND, UDF_GPU_ERFC_RISE);
  uint32_t i = udf_f32_bits(__builtin_fmaf(c, b, 0x1.8p23f)) % 32;
  float d = c - ERFC_GPU_ENTRY(CENTER, i);
  float q = __builtin_fmaf(d, ERFC_GPU_ENTRY(P7, i), ERFC_GPU_ENTRY(P6, i));
  q = __builtin_fmaf(d, q, ERFC_GPU_ENTRY(P5, i));
  q = __builtin_fmaf(d, q, ERFC_GPU_ENTRY(P4, i));
  q = __builtin_fmaf(d, q, ERFC_GPU_ENTRY(P3, i));
  float p2 = ERFC_GPU_ENTRY(P2, i);
  float u = __builtin_fmaf(q, d, p2);
  float u_low = __builtin_fmaf(q, d + UDF_GPU_ERFC_SHIFT, p2 - u);
  float slope = ERFC_GPU_ENTRY(SLOPE, i);
  float t = __builtin_fmaf(u, d, slope);
  float t_low = __builtin_fmaf(u, d, slope - t);
  t_low += __builtin_fmaf(u_low, d, ERFC_GPU_ENTRY(SLOPE_LOW, i));
  float value = ERFC_GPU_ENTRY(VALUE, i);
  float high = __builtin_fmaf(t, d, value);
  float low = __builtin_fmaf(t, d, value - high);
  low = __builtin_fmaf(t_low, d, low);
  // As in exp_quick.h.
  float nm = __builtin_fmaf(high, ERFC_GPU_INV_STEP, 0x1.8p23f);
  float k = nm - 0x1.8p23f;
  uint32_t n = udf_f32_bits(nm);
  float r = __builtin_fmaf(k, -ERFC_GPU_STEP_HI, high);
  float s = __builtin_fmaf(k, -ERFC_GPU_STEP_LO, ERFC_GPU_ENTRY(REST, i));
  s = (s + ERFC_GPU_ENTRY(OFFSET, n % 32)) + low;
  float power = ERFC_GPU_ENTRY(POWER, n % 32);
  float a = r + s;
  float e =
      __builtin_fmaf(a, __builtin_fmaf(a, ERFC_GPU_C4, ERFC_GPU_C3), 0.5f);
  float p = __builtin_fmaf(a * a, e, s);
  float y = __builtin_fmaf(power, r, power);
  float y_low = __builtin_fmaf(power, p, __builtin_fmaf(power, r, power - y));
#ifdef UDF_GPU_WATCH_PAIR
  UDF_GPU_WATCH_PAIR(y, y_low, power * UDF_GPU_ERFC_WIDTH);
#endif
  float upper = y + y_low;
  float lower = y + __builtin_fmaf(power, UDF_GPU_ERFC_WIDTH, y_low);
  // NaN is hard, and all of the last interval.
  *hard = !(upper == lower);
  return udf_f32_from_bits(udf_f32_bits(upper) + (n / 32 << 23));
}
