//===- lanes.c - The bodies of lanes.h against their instructions ---------===//
// SPDX-License-Identifier: Apache-2.0
//
// Defined by the compiler's command: LANES, the file of the bodies. Reads
// encodings of floats, four bytes each. Prints for udf_lane_scale,
// udf_lane_exponent and udf_lane_mantissa how many results it compared, and how
// many differ. Two NaN are the same, and powers that take a finite number to
// NaN are left out.
//
//===----------------------------------------------------------------------===//

#include LANES

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const float powers[] = {-INFINITY, -1000.0f, -150.5f, -1.0f,
                               -0.5f,     0.0f,     0.5f,    127.9f,
                               128.0f,    1000.0f,  INFINITY};

static float scale(float y, float n) {
  return _mm512_cvtss_f32(
      _mm512_scalef_ps(_mm512_set1_ps(y), _mm512_set1_ps(n)));
}

static float exponent(float x) {
  return _mm512_cvtss_f32(_mm512_getexp_ps(_mm512_set1_ps(x)));
}

static float mantissa(float x) {
  return _mm512_cvtss_f32(_mm512_getmant_ps(
      _mm512_set1_ps(x), _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan));
}

static int differ(float a, float b) {
  return isnan(a) && isnan(b) ? 0 : memcmp(&a, &b, sizeof a) != 0;
}

int main(void) {
  long compared[3] = {0}, wrong[3] = {0};
  float x;
  while (fread(&x, sizeof x, 1, stdin) == 1) {
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
  for (int i = 0; i < 3; ++i)
    printf("%ld %ld\n", compared[i], wrong[i]);
}
