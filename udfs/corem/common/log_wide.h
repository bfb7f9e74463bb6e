//===- log_wide.h - Quick paths of log, log2 and log10 at AVX-512 ---------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = 2^k m and r = m c - 1, exact, as in log_quick.h, with its tables of 32
// entries: log(x) = base + log(1 + r), base = k log(2) - log(c). Fewer
// instructions serve:
//
//   high = base + r C1, rounded, whose error is kept in low with what base has
//   no room for; the terms from r^2 on are added to low in float.
//
// C1 is 1, or log2(e) or log10(e), whose low part goes with the terms from r^2
// on. k is converted together with the bits below it, which are zero, so that
// it counts encodings; the constants are for that.
//
// Error. The terms from r^2 on err by 2^-23.4 C1 r^2: r^2, the polynomial, and
// the sum of them with low are rounded. All others are below 2^-36 of the
// result: the low parts of the tables and of k log(2) are known to 2^-43 and
// are rounded once more. So the width of the rounding test has a part in
// proportion to r^2 and one to the result. At 1 both vanish, and the result is
// exact. log_wide.gappa has the proof (tests/native/test_log_wide_bounds.py);
// the test runs the arguments of a few pieces that are left open. Each path has
// been compared with its function for all arguments. Half of the part of r^2
// gave wrong results in log and log2.
//
// log(x) is beyond LIMIT, or NaN, for arguments that are zero, subnormal,
// negative, infinite or NaN, and for a few binades of others. These are left to
// the fast path.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_WIDE_H
#define UDF_LOG_WIDE_H

#include "corem.h"

#include "log_quick_constants.h"
#include "log_wide_constants.h"

#ifdef __FMA__

// The part of the width that is in proportion to the result.
#define UDF_LOG_WIDE_RESULT 0x1p-36f

// The intervals begin a little earlier than in log_quick.h: base less high
// would not be exact in log10 for some arguments below 0.9937.
#define UDF_LOG_WIDE_START (UDF_LOG_QUICK_START - 4000)

// k in encodings, r, and the place of the interval in the tables.
typedef struct {
  float k, r;
  uint32_t i;
} udf_log_wide_reduced;

UDF_INLINE udf_log_wide_reduced udf_log_wide_reduce(float x) {
  uint32_t u = udf_f32_bits(x);
  uint32_t offset = u - UDF_LOG_WIDE_START;
  uint32_t k = offset & UINT32_C(0xff800000);
  uint32_t i = (offset >> UDF_LOG_QUICK_SHIFT) % UDF_LOG_QUICK_STEPS;
  float m = udf_f32_from_bits(u - k);
  float r = __builtin_fmaf(m, udf_log_quick_reciprocal[i], -1.0f);
  return (udf_log_wide_reduced){(float)(int32_t)k, r, i};
}

// high + low rounded; the other part of the width is share r^2.
UDF_INLINE float udf_log_wide_round(float high, float low, float r, float share,
                                    float limit, int *hard) {
  float size = __builtin_fabsf(high);
  float width = __builtin_fmaf(size, UDF_LOG_WIDE_RESULT / share, r * r);
  float upper = high + __builtin_fmaf(width, share, low);
  float lower = high + __builtin_fmaf(width, -share, low);
  // That costs nothing, as an addition can be masked. NaN differs from 0, too.
  lower = size <= limit ? lower : 0;
  *hard = upper != lower;
  return upper;
}

#endif

#endif // UDF_LOG_WIDE_H
