//===- seluf.c - Correctly rounded float32 selu ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// selu(x) = S x for x > 0, S A (exp(x) - 1) otherwise, for real x. S and A are
// the doubles that PyTorch passes to elu: those nearest to
// 1.0507009873554804934193349852946 and 1.6732632423543772848170429916717.
//
// Method. With k, r, h = H - r/2 and s = 2^k as in tanhf.c, exp(x) - 1 =
// ((s - 1) h + s r) / h: small arguments keep their relative accuracy.
//
// Error of the fast path, relative: exp 2^-45.4 (composite.h), which the
// difference makes at most 2^-44 where it does not vanish; for k = 0 the
// quotient is r / h, 2^-49. The product with S A adds 2^-52. That is at most
// 2^9 units in the last place of the double. The rounding test sends everything
// within SELU_MARGIN = 2^10 units of a boundary to the accurate path; subnormal
// results are tested at their own spacing.
//
// Accurate path. The same in double-double, relative error below 2^-74; S A and
// S x are exact sums of two doubles.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/composite.h"

#define SELU_SCALE 1.0507009873554804934193349852946
#define SELU_ALPHA 1.6732632423543772848170429916717
// exp(SELU_MIN) is below 2^-57: selu(x) rounds to -S A.
#define SELU_MIN -0x1.4p+5f
#define SELU_MARGIN (UINT64_C(1) << 10)

UDF_INLINE float udf_seluf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x < SELU_MIN ? SELU_MIN : x;
  c = c > 0 ? 0 : c;
  double d = c;
  double kd = UDF_FMA(d, TANH_LOG2E, UDF_COMPOSITE_MAGIC);
  double k = kd - UDF_COMPOSITE_MAGIC;
  double r = UDF_FMA(k, -TANH_LN2, d);
  double z = r * r;
  double p34 = UDF_FMA(z, TANH_C4, TANH_C3);
  double p24 = UDF_FMA(z, p34, TANH_C2);
  double p14 = UDF_FMA(z, p24, TANH_C1);
  double h = UDF_FMA(r, -0.5, UDF_FMA(z, p14, TANH_C0));
  double scale = udf_f64_from_bits(udf_f64_bits(kd) << 52);
  double num = UDF_FMA(scale - 1, h, scale * r);
  double negative = (SELU_SCALE * SELU_ALPHA) * (num / h);
  double positive = SELU_SCALE * (double)x;
  double y = x > 0 ? positive : negative;
  // Results beyond the largest number are tested like others.
  *hard = udf_near_any_boundary(y, SELU_MARGIN);
  // Only the sign of -0 is missing.
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_seluf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x == 0 || x == __builtin_inff())
    return x;
  double d = x;
  if (x > 0)
    return udf_dd_round(udf_two_prod(SELU_SCALE, d));
  udf_dd both = udf_two_prod(SELU_SCALE, SELU_ALPHA);
  if (x <= SELU_MIN)
    return udf_dd_round((udf_dd){-both.hi, -both.lo});
  return udf_dd_round(udf_dd_mul(udf_expm1_dd(d), both));
}
