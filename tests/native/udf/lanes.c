//===- lanes.c - Bodies of lanes against their instructions ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Defined by the compiler's command: LANES and DOUBLE_LANES, the files of the
// bodies. Reads encodings of floats, four bytes each; two make one of a double.
// Prints for udf_lane_scale, udf_lane_exponent, udf_lane_mantissa and
// udf_lane_scale_double how many results it compared, and how many differ. Two
// NaN are the same, and powers that take a finite number to NaN are left out.
//
//===----------------------------------------------------------------------===//

#include DOUBLE_LANES
#include LANES

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const float powers[] = {-INFINITY, -1000.0f, -150.5f, -1.0f,
                               -0.5f,     0.0f,     0.5f,    127.9f,
                               128.0f,    1000.0f,  INFINITY};

static float scale(float y, float n) {
  return _mm512_cvtss_f32(
      _mm512_scalef_ps(_mm512_set1_ps(y), _mm512_set1_ps(n)));
}

static double scale_double(double y, double n) {
  return _mm512_cvtsd_f64(
      _mm512_scalef_pd(_mm512_set1_pd(y), _mm512_set1_pd(n)));
}

static float exponent(float x) {
  return _mm512_cvtss_f32(_mm512_getexp_ps(_mm512_set1_ps(x)));
}

static float mantissa(float x) {
  return _mm512_cvtss_f32(_mm512_getmant_ps(
      _mm512_set1_ps(x), _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan));
}

static int differ(double a, double b) {
  return isnan(a) && isnan(b) ? 0 : memcmp(&a, &b, sizeof a) != 0;
}

int main(void) {
  long compared[4] = {0}, wrong[4] = {0};
  float x;
  double before = 0;
  while (fread(&x, sizeof x, 1, stdin) == 1) {
    // The upper half of the double is this encoding, the lower half the last.
    uint64_t bits;
    uint32_t half;
    memcpy(&bits, &before, sizeof bits);
    memcpy(&half, &x, sizeof half);
    bits = bits >> 32 | (uint64_t)half << 32;
    double d;
    memcpy(&d, &bits, sizeof d);
    before = d;
    for (unsigned i = 0; i < sizeof powers / sizeof *powers; ++i) {
      double n = 8.0 * (double)powers[i] + 0.25, wanted = scale_double(d, n);
      if (!isfinite(d) || isnan(wanted))
        continue;
      ++compared[3];
      wrong[3] += differ(udf_lane_scale_double(d, n), wanted);
    }
    for (unsigned i = 0; i < sizeof powers / sizeof *powers; ++i) {
      float n = powers[i], wanted = scale(x, n);
      if (!isfinite(x) || isnan(wanted))
        continue;
      ++compared[0];
      wrong[0] += differ(udf_lane_scale(x, n), wanted);
    }
    ++compared[1];
    wrong[1] += differ(udf_lane_exponent(x), exponent(x));
    ++compared[2];
    wrong[2] += differ(udf_lane_mantissa(x), mantissa(x));
  }
  for (int i = 0; i < 4; ++i)
    printf("%ld %ld\n", compared[i], wrong[i]);
}
