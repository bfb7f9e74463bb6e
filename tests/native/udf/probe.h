//===- probe.h - UDFs whose two paths can be told apart -------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The fast paths have the shape of the shipped functions (double precision, a
// polynomial of degree 8, k joined to the exponent as an integer), so that what
// holds for their code holds for those too; they are not accurate. A lane is
// "hard" when the last four bits of its encoding are 0101, and the accurate
// paths return something that no fast path returns: a skipped or a needless
// fix-up shows in the bits. A quick path gives up on 0110, too.
//
// ULP_ERROR_FAST and ULP_ERROR_ACCURATE (0 or 1) flip the last bit of one path,
// for the negative controls.
//
//===----------------------------------------------------------------------===//

#ifndef PROBE_H
#define PROBE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef ULP_ERROR_FAST
#define ULP_ERROR_FAST 0
#endif
#ifndef ULP_ERROR_ACCURATE
#define ULP_ERROR_ACCURATE 0
#endif

#ifdef __FMA__
#define FMA(a, b, c) __builtin_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

static inline uint32_t bits32(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float float32(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
static inline uint64_t bits64(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline double float64(uint64_t u) {
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static inline double taylor_exp(double x) {
  x = x > 700.0 ? 700.0 : x;
  x = x < -700.0 ? -700.0 : x;
  double t = FMA(x, 0x1.71547652b82fep+0, 0x1.8p52);
  double k = t - 0x1.8p52;
  double r = FMA(k, -0x1.62e42fefa39efp-1, x);
  double p = 1.0 / 40320;
  p = FMA(p, r, 1.0 / 5040);
  p = FMA(p, r, 1.0 / 720);
  p = FMA(p, r, 1.0 / 120);
  p = FMA(p, r, 1.0 / 24);
  p = FMA(p, r, 1.0 / 6);
  p = FMA(p, r, 0.5);
  p = FMA(p, r, 1.0);
  p = FMA(p, r, 1.0);
  return float64(bits64(p) + (bits64(t) << 52));
}

// float32, one argument

static inline float udf_expf_fast(float x, int *hard) {
  *hard = (bits32(x) & 15) == 5;
  return float32(bits32((float)taylor_exp(x)) ^ ULP_ERROR_FAST);
}
static float udf_expf_accurate(float x) {
  return float32(bits32(-(float)taylor_exp(x)) ^ ULP_ERROR_ACCURATE);
}

// float32, one argument, four paths: squares out of tables, and by arithmetic.
// The short path, which the scalar form alone has, gives up on other arguments.

static inline float udf_lookupf_short(float x, int *hard) {
  static const float squares[4] = {0, 1, 4, 9};
  uint32_t u = bits32(x);
  if (u % 32 > 3 || (u & 15) == 3) {
    *hard = 1;
    return -2.0f;
  }
  float b = u / 32 % 16, c = u / 512 % 8;
  float y = squares[u % 32] + b * 0.125f + c * 1000.0f;
  return float32(bits32(y) ^ ULP_ERROR_FAST);
}
static inline float udf_lookupf_quick(float x, int *hard) {
  static const float squares[32] = {0,   1,   4,   9,   16,  25,  36,  49,
                                    64,  81,  100, 121, 144, 169, 196, 225,
                                    256, 289, 324, 361, 400, 441, 484, 529,
                                    576, 625, 676, 729, 784, 841, 900, 961};
  static const float eighths[16] = {0,    0.125, 0.25, 0.375, 0.5,  0.625,
                                    0.75, 0.875, 1,    1.125, 1.25, 1.375,
                                    1.5,  1.625, 1.75, 1.875};
  static const float thousands[8] = {0,    1000, 2000, 3000,
                                     4000, 5000, 6000, 7000};
  uint32_t u = bits32(x);
  float y = squares[u % 32] + eighths[u / 32 % 16] + thousands[u / 512 % 8];
  *hard = (u & 15) == 5 || (u & 15) == 6;
  return *hard ? -1.0f : float32(bits32(y) ^ ULP_ERROR_FAST);
}
static inline float udf_lookupf_fast(float x, int *hard) {
  uint32_t u = bits32(x);
  float a = u % 32, b = u / 32 % 16, c = u / 512 % 8;
  *hard = (u & 15) == 5;
  return float32(bits32(a * a + b * 0.125f + c * 1000.0f) ^ ULP_ERROR_FAST);
}
static float udf_lookupf_accurate(float x) {
  return float32(bits32(x) ^ ULP_ERROR_ACCURATE);
}

// float64, one argument; external functions, unlike the others

double udf_exp_quick(double x, int *hard) {
  *hard = (bits64(x) & 15) == 5 || (bits64(x) & 15) == 6;
  return *hard ? -1.0 : float64(bits64(taylor_exp(x)) ^ ULP_ERROR_FAST);
}
double udf_exp_fast(double x, int *hard) {
  *hard = (bits64(x) & 15) == 5;
  return float64(bits64(taylor_exp(x)) ^ ULP_ERROR_FAST);
}
double udf_exp_accurate(double x) {
  return float64(bits64(-taylor_exp(x)) ^ ULP_ERROR_ACCURATE);
}

// Two arguments. Which of two NaNs an addition hands on is nobody's promise,
// so that the payload is set here.

static inline float udf_hypotf_quick(float x, float y, int *hard) {
  double a = x, b = y;
  uint32_t low = (bits32(x) ^ bits32(y)) & 15;
  float r = (float)__builtin_sqrt(FMA(a, a, b * b));
  *hard = low == 5 || low == 6;
  r = ((x != x) | (y != y)) ? __builtin_nanf("") : r;
  return *hard ? -1.0f : float32(bits32(r) ^ ULP_ERROR_FAST);
}
static inline float udf_hypotf_fast(float x, float y, int *hard) {
  double a = x, b = y;
  float r = (float)__builtin_sqrt(FMA(a, a, b * b));
  *hard = ((bits32(x) ^ bits32(y)) & 15) == 5;
  r = ((x != x) | (y != y)) ? __builtin_nanf("") : r;
  return float32(bits32(r) ^ ULP_ERROR_FAST);
}
static float udf_hypotf_accurate(float x, float y) {
  return float32((bits32(x) - bits32(y)) ^ ULP_ERROR_ACCURATE);
}

static inline double udf_hypot_fast(double x, double y, int *hard) {
  double r = __builtin_sqrt(FMA(x, x, y * y));
  *hard = ((bits64(x) ^ bits64(y)) & 15) == 5;
  r = ((x != x) | (y != y)) ? __builtin_nan("") : r;
  return float64(bits64(r) ^ ULP_ERROR_FAST);
}
static double udf_hypot_accurate(double x, double y) {
  return float64((bits64(x) - bits64(y)) ^ ULP_ERROR_ACCURATE);
}

// One path only, with branches, a loop and calls

static float udf_stepf(float x) {
  if (x != x)
    return float32(0x7fc00000u ^ ULP_ERROR_FAST);
  float y = x;
  for (uint32_t i = bits32(x) & 3; i > 0; --i)
    y = y * 0.5f + 1.0f;
  if (y > 100.0f)
    return float32(bits32(floorf(y)) ^ ULP_ERROR_FAST);
  return float32(bits32(cbrtf(y)) ^ ULP_ERROR_FAST);
}

static double udf_step(double x, double y) {
  if (!(x < y))
    return float64(bits64(x) ^ ULP_ERROR_FAST);
  return float64(bits64(fmod(y, 3.0)) ^ ULP_ERROR_FAST);
}

#endif // PROBE_H
