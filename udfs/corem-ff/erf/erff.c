//===- erff.c - Correctly rounded float32 erf in float-float --------------===//
//
// HEADER
//
//===----------------------------------------------------------------------===//

#include "../../corem/erf/erff.c"

#include "../common/ff.h"

#include "constants.h"

#define ERF_FF_ERROR 0x1.6p-40f
// Below it the arithmetic could underflow.
#define ERF_FF_TINY 0x1p-60f

#ifdef __FMA__
#define ERF_FF_PAIR(d)                                                         \
  ((udf_ff){udf_erf_ff_high##d[i % 16], udf_erf_ff_low##d[i % 16]})
#endif

UDF_INLINE float udf_erff_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  a = a > ERF_MAX ? ERF_MAX : a;
  float nm = __builtin_fmaf(a, 4, UDF_FF_ROUND_MAGIC);
  // At most 15.
  nm = nm > UDF_FF_ROUND_MAGIC + 15 ? UDF_FF_ROUND_MAGIC + 15 : nm;
  uint32_t i = udf_f32_bits(nm);
  float t = __builtin_fmaf(nm - UDF_FF_ROUND_MAGIC, -0.25f, a);
  float c = __builtin_fmaf(t, udf_erf_ff_c9[i % 16], udf_erf_ff_c8[i % 16]);
  c = __builtin_fmaf(t, c, udf_erf_ff_c7[i % 16]);
  c = __builtin_fmaf(t, c, udf_erf_ff_c6[i % 16]);
  c = __builtin_fmaf(t, c, udf_erf_ff_c5[i % 16]);
  udf_ff q = udf_ff_sum(ERF_FF_PAIR(4), udf_ff_two_prod(c, t));
  q = udf_ff_sum(ERF_FF_PAIR(3), udf_ff_mul_f(q, t));
  q = udf_ff_sum(ERF_FF_PAIR(2), udf_ff_mul_f(q, t));
  q = udf_ff_sum(ERF_FF_PAIR(1), udf_ff_mul_f(q, t));
  q = udf_ff_add(ERF_FF_PAIR(0), udf_ff_mul_f(q, t));
  int undecided;
  float y = udf_ff_round(q, ERF_FF_ERROR, &undecided);
  _Bool zero = a == 0;
  *hard = !zero & (undecided | !(a >= ERF_FF_TINY));
  return zero ? x : __builtin_copysignf(y, x);
#else
  return udf_erff_fast(x, hard);
#endif
}

static UDF_COLD float udf_erff_in_double(float x) {
  int hard;
  float y = udf_erff_fast(x, &hard);
  return hard ? udf_erff_accurate(x) : y;
}
