//===- corem.h - Building blocks shared by the corem functions ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Correctly rounded float32 functions, written as plain scalar C that the
// loop vectoriser can if-convert.  Every function has two parts, and some have
// a third, quick, that the vector and array forms try first (see exp_quick.h),
// or short, that the scalar form does (see exp_short.h):
//
//   fast      double precision, branch-free, no tables; it also says when the
//             double result lies too near a rounding boundary to be trusted.
//   accurate  double-double, for those rare inputs.  It uses only error-free
//             transformations that are exact with and without FMA, so that its
//             bits do not depend on the CPU level.
//
// Must be compiled with -ffp-contract=off: where a fused operation is wanted
// it is written UDF_FMA, and where it is not, fusing would break the
// error-free transformations below.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_COREM_H
#define UDF_COREM_H

#include <stdint.h>

// a*b+c: fused where the level has FMA, two roundings elsewhere.  Error bounds
// of the fast paths must cover both.
#ifdef __FMA__
#define UDF_FMA(a, b, c) __builtin_fma((a), (b), (c))
#else
#define UDF_FMA(a, b, c) ((a) * (b) + (c))
#endif

#define UDF_INLINE static inline __attribute__((always_inline, unused))
#define UDF_COLD __attribute__((noinline, cold, unused))

//===----------------------------------------------------------------------===//
// Encodings
//===----------------------------------------------------------------------===//

UDF_INLINE uint32_t udf_f32_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}

UDF_INLINE float udf_f32_from_bits(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

UDF_INLINE uint64_t udf_f64_bits(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}

UDF_INLINE double udf_f64_from_bits(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

// magnitude's bits with the sign bit of sign added: magnitude must be >= +0,
// or already carry that sign.  One OR, where copysign would need three
// operations before AVX-512.
UDF_INLINE float udf_f32_add_sign(float magnitude, float sign) {
  return udf_f32_from_bits(udf_f32_bits(magnitude) |
                           (udf_f32_bits(sign) & UINT32_C(0x80000000)));
}

//===----------------------------------------------------------------------===//
// Rounding a double to an integer, without a rounding instruction
//===----------------------------------------------------------------------===//

// Adding 1.5 * 2^52 rounds a double below 2^51 in magnitude to the nearest
// integer, and leaves that integer in the low bits of the encoding.
#define UDF_ROUND_MAGIC 0x1.8p52

//===----------------------------------------------------------------------===//
// Rounding test
//===----------------------------------------------------------------------===//

// A double whose float32 result is normal rounds at a boundary when the low 29
// bits of its encoding are exactly 0x10000000 (the half-way point).  Returns 1
// when those bits lie in [0x10000000 - margin, 0x10000000 + margin), that is
// when the result cannot be decided for an evaluation error below margin units
// in the last place of the double.  margin must be a power of two: the test is
// then one addition and one masked comparison with zero.
// Meaningless for results in the subnormal range of float32.
UDF_INLINE int udf_near_boundary(double r, uint64_t margin) {
  uint64_t shifted = udf_f64_bits(r) + (UINT64_C(0x10000000) + margin);
  return (shifted & (UINT64_C(0x1fffffff) & ~(2 * margin - 1))) == 0;
}

// The same where float32 may have to round r >= 0 to a subnormal: adding 2^-126
// brings such a result to the binade where float32 has the spacing of its
// subnormals.  The addition errs by half a unit in the last place at most.
// subnormal must say whether r < 2^-126; a comparison of the argument with a
// float threshold is best, as it does not wait for r.  The encodings are
// selected, not the doubles, because that stays cheap in the scalar form, and
// subnormal is a _Bool because an int loses LLVM 19 the masked addition.
UDF_INLINE int udf_near_boundary_subnormal(double r, _Bool subnormal,
                                           uint64_t margin) {
  uint64_t u = subnormal ? udf_f64_bits(r + 0x1p-126) : udf_f64_bits(r);
  return udf_near_boundary(udf_f64_from_bits(u), margin);
}

//===----------------------------------------------------------------------===//
// Double-double arithmetic (accurate paths only)
//===----------------------------------------------------------------------===//

// An unevaluated sum hi + lo with |lo| <= ulp(hi)/2.
typedef struct {
  double hi, lo;
} udf_dd;

// Exact sum of a and b, any order of magnitudes (Knuth, TAOCP vol. 2, 4.2.2).
UDF_INLINE udf_dd udf_two_sum(double a, double b) {
  double s = a + b;
  double bb = s - a;
  return (udf_dd){s, (a - (s - bb)) + (b - bb)};
}

// Exact sum for |a| >= |b| or a == 0 (Dekker, Numer. Math. 18, 1971).
UDF_INLINE udf_dd udf_fast_two_sum(double a, double b) {
  double s = a + b;
  return (udf_dd){s, b - (s - a)};
}

// Exact product.  Dekker's product without FMA (Numer. Math. 18, 1971) gives
// the same two doubles as the fused form, as both are exact; requires
// |a|, |b| < 2^970 and a product whose low part does not underflow.
UDF_INLINE udf_dd udf_two_prod(double a, double b) {
  double p = a * b;
#ifdef __FMA__
  return (udf_dd){p, __builtin_fma(a, b, -p)};
#else
  double ca = a * 0x1.000002p27, cb = b * 0x1.000002p27;
  double ah = ca - (ca - a), bh = cb - (cb - b);
  double al = a - ah, bl = b - bh;
  return (udf_dd){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
#endif
}

// Relative error below 2^-102 (Joldes, Muller, Popescu, ACM TOMS 44(2), 2017,
// algorithm 6: AccurateDWPlusDW, 3u^2 with u = 2^-53).
UDF_INLINE udf_dd udf_dd_add(udf_dd a, udf_dd b) {
  udf_dd s = udf_two_sum(a.hi, b.hi);
  udf_dd t = udf_two_sum(a.lo, b.lo);
  udf_dd v = udf_fast_two_sum(s.hi, s.lo + t.hi);
  return udf_fast_two_sum(v.hi, v.lo + t.lo);
}

UDF_INLINE udf_dd udf_dd_add_d(udf_dd a, double b) {
  udf_dd s = udf_two_sum(a.hi, b);
  return udf_fast_two_sum(s.hi, s.lo + a.lo);
}

// Relative error below 2^-102 (ibid., algorithm 10: DWTimesDW1, 5u^2 with a
// tight bound of 7u^2; the products of low parts are not fused here so that
// the bits do not depend on the CPU level).
UDF_INLINE udf_dd udf_dd_mul(udf_dd a, udf_dd b) {
  udf_dd p = udf_two_prod(a.hi, b.hi);
  return udf_fast_two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

UDF_INLINE udf_dd udf_dd_mul_d(udf_dd a, double b) {
  udf_dd p = udf_two_prod(a.hi, b);
  return udf_fast_two_sum(p.hi, p.lo + a.lo * b);
}

// Relative error below 2^-98: one correction of the double quotient.
UDF_INLINE udf_dd udf_dd_div(udf_dd a, udf_dd b) {
  double q = a.hi / b.hi;
  udf_dd p = udf_dd_mul_d(b, q);
  udf_dd r = udf_dd_add(a, (udf_dd){-p.hi, -p.lo});
  return udf_fast_two_sum(q, r.hi / b.hi);
}

UDF_INLINE udf_dd udf_dd_sub(udf_dd a, udf_dd b) {
  return udf_dd_add(a, (udf_dd){-b.hi, -b.lo});
}

// Relative error below 2^-98: one correction of the double square root.
// a > 0.
UDF_INLINE udf_dd udf_dd_sqrt(udf_dd a) {
  double s = __builtin_sqrt(a.hi);
  udf_dd r = udf_dd_sub(a, udf_two_prod(s, s));
  return udf_fast_two_sum(s, r.hi / (2 * s));
}

// Rounds hi + lo to float32 once.  hi is first rounded to odd (Boldo and
// Melquiond, IEEE TC 57(4), 2008): its last bit becomes 1 when lo is not zero,
// so that the half-way cases of the conversion, subnormal results included,
// are decided by the sign of lo.  hi must be finite and not zero.
UDF_INLINE float udf_dd_round(udf_dd a) {
  udf_dd s = udf_fast_two_sum(a.hi, a.lo);
  uint64_t u = udf_f64_bits(s.hi);
  if (s.lo != 0 && (u & 1) == 0)
    u += (s.lo > 0) == (s.hi > 0) ? 1 : -UINT64_C(1);
  return (float)udf_f64_from_bits(u);
}

#endif // UDF_COREM_H
