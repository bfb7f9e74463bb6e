//===- rows_wide.h - Quick paths at AVX-512 by 32 rows --------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// f(v) in pairs of floats for a v that has been reduced to a short range. 32
// rows of tables, each of which is for an interval of v or of another branch of
// the function, are two registers for each column, and a look-up is one
// instruction. With c near the middle of an interval, r = v - c is exact and
//
//   f(c + r) (1 + m) = value + slope r + r^2 (p2 + p3 r + p4 r^2 + ...)
//
// The centers are chosen (rows_wide.py) so that value and slope are floats but
// for some 2^-38 of the result. A branch that begins at pi/2 has its first
// center at 0; what a float of pi/2 lacks is then in more, for all its rows.
// value + slope r is rounded once, to high, and fused multiply-adds give the
// error of that; the rest is low.
//
// v may be a rounded quotient or root, and d is what it lacks. slope d is in
// more, and (r + d)^2 takes the place of r^2, because slope is that of c.
//
// Error, relative to the result. The terms from r^2 on have three roundings
// that count, of the polynomial, of r^2 and of the product, 2^-24 of them each.
// These terms are longest in the second row of a branch that begins at 0, 2^-9
// of the result, and 2^-12 in most rows. With the error of the polynomial this
// stays below m, which the generator estimates for each row at some points: it
// is between 2^-40 and 2^-31.2. The sum is therefore not too small and at most
// 2 m too large: the true value lies between high + low and high + low - 2 m
// high. In a row from 0 on, where f is zero, slope is exact, and m shrinks with
// r: the polynomial has it in p2. rows_wide.gappa has the proof for atan, and
// for asin and acos up to 1/2 (tests/native/test_rows_wide_bounds.py); the test
// runs the few arguments that are left open, and those beyond 1/2. All
// arguments were run, and none that the test decides was wrong; with 0.38 of
// the margins, some in every 10 million were for atan and asin.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ROWS_WIDE_H
#define UDF_ROWS_WIDE_H

#include "corem.h"

#ifdef __FMA__

// Adding it leaves an integer in the low bits of the encoding.
#define UDF_ROWS_WIDE_MAGIC 0x1.8p23f

// What a row has; width is -2 m.
typedef struct {
  float value, slope, p2, p3, p4, p5, width;
} udf_rows_wide_row;

// f(v + d) rounded, for r = v - c and a tiny d, of which slope d is in more.
UDF_INLINE float udf_rows_wide(float r, float d, float more,
                               udf_rows_wide_row e, int *undecided) {
  float high = __builtin_fmaf(e.slope, r, e.value);
  float low = __builtin_fmaf(e.slope, r, e.value - high) + more;
  float q = __builtin_fmaf(r, e.p5, e.p4);
  q = __builtin_fmaf(r, q, e.p3);
  q = __builtin_fmaf(r, q, e.p2);
  // The square of r + d.
  float square = r * __builtin_fmaf(d, 2.0f, r);
  low = __builtin_fmaf(square, q, low);
  float upper = high + low;
  float lower = high + __builtin_fmaf(high, e.width, low);
  *undecided = upper != lower;
  return upper;
}

#endif

#endif // UDF_ROWS_WIDE_H
