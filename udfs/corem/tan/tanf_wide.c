//===- tanf_wide.c - Quick path of tan at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// n is the integer nearest to 32 x/pi, and a table has two floats S and C for
// each of the 32 steps of half a circle, whose quotient is tan(n pi/32) within
// 2^-46: only the quotient counts, and so C can be chosen (trig_wide.py). With
// r = x - n pi/32 and u = tan(r) = r + r^3 (TAN3 + TAN5 r^2),
//
//   tan(x) = (S + C u) / (C - S u)
//
// S is 0 at the zeros of tan and C at its poles: the error is relative there if
// that of r is. So pi/32 has three parts. x - n TAN_HIGH is exact, as in
// trig_wide.h; r is rounded, and its error exact, because TAN_MIDDLE has ten
// bits. Two roundings make u a pair.
//
// Top and bottom are pairs by fused multiply-adds. One division gives 1/bottom;
// the remainder of top/bottom is exact, and corrects the product.
//
// Error: that of u over |S + C u| |C - S u|. That of u is up to 2^-39 for each
// of four roundings of the terms from r^3 on, and 2^-39.8 by the polynomial.
// They are never the largest together: the width of the rounding test, relative
// to the result and from a table, is for 2^-37.3. wide.gappa has the proof for
// four fifths of entries and remainders, but not within 2^-12 of poles and of
// zeros other than 0; tests/native/test_tan_wide_bounds.py runs the rest. All
// arguments were run: none that the test decides is wrong.
//
//===----------------------------------------------------------------------===//

#include "../common/trig_wide.h"

#ifdef __FMA__

UDF_INLINE float udf_tanf_wide(float x, int *hard) {
  float t = __builtin_fmaf(x, UDF_TRIG_WIDE_INVERSE, UDF_TRIG_WIDE_MAGIC);
  float n = t - UDF_TRIG_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(t);
  float s = udf_trig_wide_tan_sin[i % UDF_TRIG_WIDE_STEPS];
  float c = udf_trig_wide_tan_cos[i % UDF_TRIG_WIDE_STEPS];
  float width = udf_trig_wide_tan_width[i % UDF_TRIG_WIDE_STEPS];
  float first = __builtin_fmaf(n, -UDF_TRIG_WIDE_TAN_HIGH, x);
  float r = __builtin_fmaf(n, -UDF_TRIG_WIDE_TAN_MIDDLE, first);
  // The argument is r less this.
  float rest = __builtin_fmaf(n, UDF_TRIG_WIDE_TAN_MIDDLE, r - first);
  rest = __builtin_fmaf(n, UDF_TRIG_WIDE_TAN_LOW, rest);
  float square = r * r;
  float q = __builtin_fmaf(square, UDF_TRIG_WIDE_TAN5, UDF_TRIG_WIDE_TAN3);
  float cube = r * square;
  // The derivative of tan(r) is nearly 1 + r^2.
  float change = __builtin_fmaf(cube, q, -__builtin_fmaf(square, rest, rest));
  float u = r + change;
  float u_low = change - (u - r);
  float top = __builtin_fmaf(c, u, s);
  float top_low = __builtin_fmaf(c, u_low, __builtin_fmaf(c, u, -(top - s)));
  float bottom = __builtin_fmaf(-s, u, c);
  float bottom_low =
      __builtin_fmaf(-s, u_low, __builtin_fmaf(-s, u, c - bottom));
  float inverse = 1.0f / bottom;
  float y = top * inverse;
  float miss =
      __builtin_fmaf(y, bottom, -top) + __builtin_fmaf(y, bottom_low, -top_low);
  float margin = y * width;
  float upper = y + __builtin_fmaf(-miss, inverse, margin);
  float lower = y + __builtin_fmaf(-miss, inverse, -margin);
  *hard = udf_trig_wide_hard(upper, lower, i);
  return upper;
}

#endif
