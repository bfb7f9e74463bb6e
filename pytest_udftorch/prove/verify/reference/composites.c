//===- composites.c - References of the activations -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Each activation twice: in double with the C library's functions, and rounded
// to float32 once, with GNU MPFR in Ziv's loop (ACM TOMS 17(3), 1991). A value
// computed with P bits is within 2^SLACK units in its last place: the functions
// of MPFR are correctly rounded, every formula has less than ten of them, and
// none but erfc amplifies the error of its argument, by less than 2^10
// for |x| <= NEAR. Both ends of that interval are rounded to float32; P doubles
// until they agree.
//
// At an infinity a result is the limit, with the sign of the results before it.
//
//===----------------------------------------------------------------------===//

#include "reference.h"
#include <math.h>
#include <mpfr.h>
#include <stddef.h>

#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver exp, exp@GLIBC_2.2.5"); // see check.c
#endif

// The doubles that torch's selu passes to elu.
static const double scale = 1.0507009873554804934193349852946;
static const double alpha = 1.6732632423543772848170429916717;

// Beyond FAR every function here rounds to a constant or to its argument; gelu
// does so beyond NEAR, where erfc would take MPFR long.
enum { SLACK = 30, FAR = 200, NEAR = 16 };

//===----------------------------------------------------------------------===//
// In double
//===----------------------------------------------------------------------===//

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double softplus(double x) {
  return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double logsigmoid(double x) { return -softplus(-x); }

static double silu(double x) { return x < -FAR ? -0.0 : x / (1 + exp(-x)); }

static double gelu_erf(double x) {
  return x < -FAR ? -0.0 : 0.5 * x * erfc(x * -0.70710678118654752440);
}

static double gelu_tanh(double x) {
  double d = -1.5957691216057307117597842397375 * (x + 0.044715 * (x * x * x));
  return x < -FAR ? -0.0 : x / (1 + exp(d));
}

static double mish(double x) {
  double e = exp(x < 50 ? x : 50);
  double n = e * (e + 2);
  return x < -FAR ? -0.0 : x != x ? x : x * (n / (n + 2));
}

static double elu(double x) { return x > 0 ? x : expm1(x); }

static double selu(double x) {
  return x > 0 ? scale * x : scale * alpha * expm1(x);
}

static double rsqrt(double x) { return 1 / sqrt(x); }

#define FUNCTION(name) name,
double (*const udfref_double_composites[])(double) = {
    UDFREF_COMPOSITES(FUNCTION)};

//===----------------------------------------------------------------------===//
// With many bits
//===----------------------------------------------------------------------===//

// Each sets r, of any precision, from x, a finite float32 of at most FAR in
// magnitude and not zero. t and u are of r's precision.
typedef void wide(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u);

// r = x / (1 + exp(t)).
static void logistic(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t) {
  mpfr_exp(t, t, MPFR_RNDN);
  mpfr_add_ui(t, t, 1, MPFR_RNDN);
  mpfr_div(r, x, t, MPFR_RNDN);
}

static void wide_sigmoid(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  mpfr_set_ui(u, 1, MPFR_RNDN);
  mpfr_neg(t, x, MPFR_RNDN);
  logistic(r, u, t);
}

static void wide_silu(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  (void)u;
  mpfr_neg(t, x, MPFR_RNDN);
  logistic(r, x, t);
}

static void wide_softplus(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  (void)u;
  mpfr_exp(t, x, MPFR_RNDN);
  mpfr_log1p(r, t, MPFR_RNDN);
}

static void wide_logsigmoid(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  mpfr_neg(u, x, MPFR_RNDN);
  wide_softplus(r, u, t, u);
  mpfr_neg(r, r, MPFR_RNDN);
}

static void wide_gelu_erf(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  mpfr_set_ui(t, 2, MPFR_RNDN);
  mpfr_sqrt(t, t, MPFR_RNDN);
  mpfr_div(u, x, t, MPFR_RNDN);
  mpfr_neg(u, u, MPFR_RNDN);
  mpfr_erfc(t, u, MPFR_RNDN);
  mpfr_mul(r, x, t, MPFR_RNDN);
  mpfr_div_2ui(r, r, 1, MPFR_RNDN);
}

// -2 sqrt(2/pi) (x + 44715/1000000 x^3).
static void wide_gelu_tanh(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  mpfr_sqr(t, x, MPFR_RNDN);
  mpfr_mul_ui(t, t, 44715, MPFR_RNDN);
  mpfr_div_ui(t, t, 1000000, MPFR_RNDN);
  mpfr_add_ui(t, t, 1, MPFR_RNDN);
  mpfr_mul(t, t, x, MPFR_RNDN);
  mpfr_const_pi(u, MPFR_RNDN);
  mpfr_ui_div(u, 2, u, MPFR_RNDN);
  mpfr_sqrt(u, u, MPFR_RNDN);
  mpfr_mul(t, t, u, MPFR_RNDN);
  mpfr_mul_si(t, t, -2, MPFR_RNDN);
  logistic(r, x, t);
}

static void wide_mish(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  mpfr_exp(t, x, MPFR_RNDN);
  mpfr_add_ui(u, t, 2, MPFR_RNDN);
  mpfr_mul(t, t, u, MPFR_RNDN);
  mpfr_add_ui(u, t, 2, MPFR_RNDN);
  mpfr_div(t, t, u, MPFR_RNDN);
  mpfr_mul(r, x, t, MPFR_RNDN);
}

static void wide_elu(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  (void)t, (void)u;
  mpfr_expm1(r, x, MPFR_RNDN);
}

static void wide_selu(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  if (mpfr_sgn(x) > 0) {
    mpfr_mul_d(r, x, scale, MPFR_RNDN);
    return;
  }
  mpfr_expm1(t, x, MPFR_RNDN);
  mpfr_set_d(u, scale, MPFR_RNDN);
  mpfr_mul_d(u, u, alpha, MPFR_RNDN);
  mpfr_mul(r, t, u, MPFR_RNDN);
}

static void wide_rsqrt(mpfr_ptr r, mpfr_srcptr x, mpfr_ptr t, mpfr_ptr u) {
  (void)t, (void)u;
  mpfr_rec_sqrt(r, x, MPFR_RNDN);
}

//===----------------------------------------------------------------------===//
// Rounded to float32
//===----------------------------------------------------------------------===//

static float rounded(mpfr_srcptr value) {
  mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
  MPFR_DECL_INIT(r, 24);
  mpfr_set_emin(-148);
  mpfr_set_emax(128);
  int ternary = mpfr_set(r, value, MPFR_RNDN);
  ternary = mpfr_check_range(r, ternary, MPFR_RNDN);
  mpfr_subnormalize(r, ternary, MPFR_RNDN);
  float y = mpfr_get_flt(r, MPFR_RNDN);
  mpfr_set_emin(emin);
  mpfr_set_emax(emax);
  return y;
}

// x/2 + c x^2 for |x| < 2^-60, c = 2^-2 or a little more: the next term cannot
// bring it to a midpoint, which is x/2 or at least 2^-25 |x| away.
static float half_of(float x) {
  mpfr_t r, t;
  mpfr_inits2(512, r, t, (mpfr_ptr)0);
  mpfr_set_flt(r, x, MPFR_RNDN);
  mpfr_sqr(t, r, MPFR_RNDN);
  mpfr_div_2ui(t, t, 2, MPFR_RNDN);
  mpfr_div_2ui(r, r, 1, MPFR_RNDN);
  mpfr_add(r, r, t, MPFR_RNDN);
  float y = rounded(r);
  mpfr_clears(r, t, (mpfr_ptr)0);
  return y;
}

static float ziv(wide *f, float x) {
  MPFR_DECL_INIT(v, 24);
  mpfr_set_flt(v, x, MPFR_RNDN);
  for (mpfr_prec_t bits = 112;; bits *= 2) {
    mpfr_t r, t, u;
    mpfr_inits2(bits, r, t, u, (mpfr_ptr)0);
    f(r, v, t, u);
    mpfr_mul_2si(t, r, SLACK - (long)bits, MPFR_RNDN);
    mpfr_sub(u, r, t, MPFR_RNDN);
    mpfr_add(t, r, t, MPFR_RNDN);
    float low = rounded(u), high = rounded(t);
    mpfr_clears(r, t, u, (mpfr_ptr)0);
    // No value is zero, so that zeros agree in their signs.
    if (low == high)
      return low;
  }
}

// What a function gives where it is not computed.
enum far { ZERO, MINUS_ZERO, ITSELF, ONE, COMPUTED };

struct composite {
  wide *compute;
  enum far left, right; // beyond FAR
  enum far zero;
  int halves; // it is x/2 + about x^2/4 near zero
};

static const struct composite sigmoid_ = {wide_sigmoid, ZERO, ONE, COMPUTED, 0};
static const struct composite silu_ = {wide_silu, MINUS_ZERO, ITSELF, ITSELF,
                                       1};
static const struct composite softplus_ = {wide_softplus, ZERO, ITSELF,
                                           COMPUTED, 0};
static const struct composite logsigmoid_ = {wide_logsigmoid, ITSELF,
                                             MINUS_ZERO, COMPUTED, 0};
static const struct composite gelu_erf_ = {wide_gelu_erf, MINUS_ZERO, ITSELF,
                                           ITSELF, 1};
static const struct composite gelu_tanh_ = {wide_gelu_tanh, MINUS_ZERO, ITSELF,
                                            ITSELF, 1};
static const struct composite mish_ = {wide_mish, MINUS_ZERO, ITSELF, ITSELF,
                                       0};
static const struct composite elu_ = {wide_elu, COMPUTED, ITSELF, ITSELF, 0};
static const struct composite selu_ = {wide_selu, COMPUTED, COMPUTED, ITSELF,
                                       0};
static const struct composite rsqrt_ = {wide_rsqrt, COMPUTED, COMPUTED,
                                        COMPUTED, 0};

#define COMPOSITE(name) &name##_,
static const struct composite *const composites[] = {
    UDFREF_COMPOSITES(COMPOSITE)};

static float known(enum far what, float x) {
  return what == ZERO         ? 0.0f
         : what == MINUS_ZERO ? -0.0f
         : what == ONE        ? 1.0f
                              : x;
}

float udfref_mpfr_composite(int32_t number, float x) {
  const struct composite *c = composites[number];
  if (x != x)
    return x;
  if (c == &rsqrt_ && (x <= 0 || isinf(x)))
    return x < 0 ? NAN : 1 / x; // infinity with the sign of a zero
  if (x == 0 && c->zero != COMPUTED)
    return known(c->zero, x);
  if (x > 0 && c == &elu_)
    return x;
  if (isinf(x) && c == &selu_ && x > 0)
    return x;
  float far = c == &gelu_erf_ ? NEAR : FAR;
  enum far side = x > far ? c->right : x < -far ? c->left : COMPUTED;
  if (side != COMPUTED)
    return known(side, x);
  if (c->halves && fabsf(x) < 0x1p-60f)
    return half_of(x);
  if (x < -FAR && c != &rsqrt_)
    x = -FAR; // elu and selu have reached their limits
  return ziv(c->compute, x);
}
