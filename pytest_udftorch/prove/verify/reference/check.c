//===- check.c - Runs and judges a function over many inputs --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// A candidate's result is compared by its encoding with a reference's.  Where
// they differ, and where the double-precision result of the C library lies so
// near a rounding boundary that it cannot confirm them, MPFR decides.  So a
// result counts as right only if two computations that share no code agree on
// it or MPFR says so.
//
// The fractional error is measured against the double-precision result, which
// is never rounded to float32; its own error is below 2^(24 - margin_bits) ULP
// of float32.
//
//===----------------------------------------------------------------------===//

#include "reference.h"
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GLIBC__) && defined(__x86_64__)
// The same functions under the versions that an older glibc has too: the newer
// ones differ in how they report errors.
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver exp2, exp2@GLIBC_2.2.5");
__asm__(".symver hypot, hypot@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver log2, log2@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
#endif

enum { BLOCK = 16384 }; // 64 KiB an array: all of them stay in the L2 cache

static const uint32_t canonical_nan = 0x7fc00000;
static const uint32_t infinity = 0x7f800000, magnitude = 0x7fffffff;
static const uint32_t min_normal = 0x00800000;

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static uint32_t canonical_bits(float x) {
  uint32_t bits = bits_of(x);
  return (bits & magnitude) > infinity ? canonical_nan : bits;
}

static int is_subnormal(float x) {
  uint32_t m = bits_of(x) & magnitude;
  return m != 0 && m < min_normal;
}

//===----------------------------------------------------------------------===//
// The C library in double precision
//===----------------------------------------------------------------------===//

#define FUNCTION(name) name,
static double (*const double_1[])(double) = {UDFREF_UNIVARIATE(FUNCTION)};
static double (*const double_2[])(double,
                                  double) = {UDFREF_BIVARIATE(FUNCTION)};
#define ONE(name) +1
enum { N_PLAIN = sizeof double_1 / sizeof *double_1 };
enum { N_UNARY = N_PLAIN UDFREF_COMPOSITES(ONE) };

static void in_double(int32_t function, int64_t n, const float *a,
                      const float *b, double *out) {
  if (function < N_UNARY) {
    double (*f)(double) = function < N_PLAIN
                              ? double_1[function]
                              : udfref_double_composites[function - N_PLAIN];
    for (int64_t i = 0; i < n; i++)
      out[i] = f(a[i]);
  } else {
    double (*f)(double, double) = double_2[function - N_UNARY];
    for (int64_t i = 0; i < n; i++)
      out[i] = f(a[i], b[i]);
  }
}

//===----------------------------------------------------------------------===//
// Calling the candidate
//===----------------------------------------------------------------------===//

typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));

// Random bits for the lanes that do not count, so that a form which lets one
// lane disturb another is caught (the discipline is SLEEF's).
static uint32_t garbage_bits(uint32_t *state) {
  *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
  return *state ^ *state >> 15;
}

// What the lanes beside an input hold.
static float beside(const struct udfref_job *job, uint32_t *state) {
  return job->beside == UDFREF_RANDOM ? from_bits(garbage_bits(state))
                                      : job->easy;
}

#define VECTOR_FORM(type, lanes, isa)                                          \
  __attribute__((target(isa))) static void run_##type(                         \
      const struct udfref_job *job, int32_t arity, int64_t n, const float *a,  \
      const float *b, float *out) {                                            \
    const void *f = job->candidate;                                            \
    int64_t step = job->beside == UDFREF_INPUTS ? lanes : 1;                   \
    uint32_t state = (uint32_t)job->first ^ bits_of(a[0]);                     \
    for (int64_t i = 0; i < n; i += step) {                                    \
      float x[lanes] = {0}, y[lanes] = {0}, r[lanes];                          \
      int64_t live = n - i < step ? n - i : step;                              \
      int64_t at = 0;                                                          \
      if (job->beside != UDFREF_INPUTS) {                                      \
        at = i % lanes;                                                        \
        for (int k = 0; k < lanes; k++) {                                      \
          x[k] = beside(job, &state);                                          \
          y[k] = beside(job, &state);                                          \
        }                                                                      \
      }                                                                        \
      memcpy(x + at, a + i, (size_t)live * sizeof *x);                         \
      if (arity == 2)                                                          \
        memcpy(y + at, b + i, (size_t)live * sizeof *y);                       \
      type vx, vy, vr;                                                         \
      memcpy(&vx, x, sizeof vx);                                               \
      memcpy(&vy, y, sizeof vy);                                               \
      vr = arity == 1 ? ((type(*)(type))f)(vx)                                 \
                      : ((type(*)(type, type))f)(vx, vy);                      \
      memcpy(r, &vr, sizeof vr);                                               \
      memcpy(out + i, r + at, (size_t)live * sizeof *r);                       \
    }                                                                          \
  }

VECTOR_FORM(v8, 8, "avx")
VECTOR_FORM(v16, 16, "avx512f")

static void run_scalar(const void *f, int32_t arity, int64_t n, const float *a,
                       const float *b, float *out) {
  for (int64_t i = 0; i < n; i++)
    out[i] = arity == 1 ? ((float (*)(float))f)(a[i])
                        : ((float (*)(float, float))f)(a[i], b[i]);
}

static void run_array(const struct udfref_job *job, int32_t arity, int64_t n,
                      const float *a, const float *b, float *out) {
  if (arity == 1)
    ((void (*)(int64_t, const float *, float *, int64_t))job->candidate)(
        n, a, out, job->mode);
  else
    ((void (*)(int64_t, const float *, const float *, float *,
               int64_t))job->candidate)(n, a, b, out, job->mode);
}

// Every eighth element is an input, the others are easy.  An array form repairs
// a block as a whole if more than an eighth of its lanes are hard, or if its
// list of hard lanes is full, and so hides what the quick path gave for the
// rest.  Calls of SPARSE elements are too short to fill the list at any
// register width.
enum { APART = 8, AT_ONCE = 32, SPARSE = AT_ONCE * APART };

// Where input k of a call stands: at another place of each group, so that every
// lane has its turn.
static int64_t sparse_place(int64_t k) { return k * APART + k % APART; }

static void run_sparse(const struct udfref_job *job, int32_t arity, int64_t n,
                       const float *a, const float *b, float *out) {
  _Alignas(64) float x[SPARSE], y[SPARSE], r[SPARSE];
  for (int k = 0; k < SPARSE; k++)
    x[k] = y[k] = job->easy;
  for (int64_t i = 0; i < n; i += AT_ONCE) {
    int64_t live = n - i < AT_ONCE ? n - i : AT_ONCE;
    for (int64_t k = 0; k < live; k++) {
      x[sparse_place(k)] = a[i + k];
      if (arity == 2)
        y[sparse_place(k)] = b[i + k];
    }
    run_array(job, arity, SPARSE, x, y, r);
    for (int64_t k = 0; k < live; k++)
      out[i + k] = r[sparse_place(k)];
  }
}

static void run_candidate(const struct udfref_job *job, int32_t arity,
                          uint64_t done, int64_t n, const float *a,
                          const float *b, float *out) {
  const void *f = job->candidate;
  if (job->form == UDFREF_GIVEN) {
    memcpy(out, (const float *)f + done, (size_t)n * sizeof *out);
    return;
  }
  unsigned saved = _mm_getcsr();
  // FTZ is bit 15 of MXCSR, DAZ bit 6.  Both are cleared otherwise: the
  // process may have set them.
  unsigned flags = (1u << 15) | (1u << 6);
  _mm_setcsr(job->flush ? saved | flags : saved & ~flags);
  switch (job->form) {
  case UDFREF_ARRAY:
    if (job->beside == UDFREF_INPUTS)
      run_array(job, arity, n, a, b, out);
    else
      run_sparse(job, arity, n, a, b, out);
    break;
  case UDFREF_SCALAR:
    run_scalar(f, arity, n, a, b, out);
    break;
  case UDFREF_V8:
    run_v8(job, arity, n, a, b, out);
    break;
  default:
    run_v16(job, arity, n, a, b, out);
    break;
  }
  _mm_setcsr(saved);
}

static int has_form(int32_t form) {
  __builtin_cpu_init();
  if (form == UDFREF_V8)
    return __builtin_cpu_supports("avx");
  if (form == UDFREF_V16)
    return __builtin_cpu_supports("avx512f");
  return 1;
}

//===----------------------------------------------------------------------===//
// Judging
//===----------------------------------------------------------------------===//

// Exponent field of the ULP that errors are counted in: that of the correctly
// rounded result, or of the largest finite number.
static double ulps(double distance, double exact) {
  uint32_t field = (bits_of((float)exact) & magnitude) >> 23;
  if (field < 1)
    field = 1;
  if (field > 254)
    field = 254;
  // 1 ULP is 2^(field - 150); multiply by its inverse.
  uint64_t inverse = (uint64_t)(1023 + 150 - field) << 52;
  double scale;
  memcpy(&scale, &inverse, sizeof scale);
  return distance * scale;
}

// Error of got in ULP, or NaN where there is none.
static double error_ulp(uint32_t got, double exact) {
  float value = from_bits(got);
  if (isnan(exact) || isnan(value))
    return isnan(exact) && isnan(value) ? 0 : NAN;
  if (isinf(value)) {
    double limit = value < 0 ? -0x1p128 : 0x1p128;
    if (fabs(exact) >= 0x1p128 && (exact < 0) == (value < 0))
      return 0;
    return isinf(exact) ? NAN : ulps(fabs(limit - exact), exact);
  }
  if (isinf(exact))
    return NAN;
  return ulps(fabs(value - exact), exact);
}

static int bin_of(double error) {
  if (isnan(error))
    return UDFREF_BINS - 1;
  if (error < 1)
    return (int)(error * UDFREF_FINE);
  int exponent = ilogb(error);
  return UDFREF_FINE +
         (exponent < UDFREF_COARSE ? exponent : UDFREF_COARSE - 1);
}

// 1 and the result, if every number within the relative margin of exact rounds
// alike; 0 otherwise.
static int decided(double exact, double margin, uint32_t *want) {
  if (isnan(exact)) {
    *want = canonical_nan;
    return 1;
  }
  if (isinf(exact)) {
    *want = bits_of((float)exact);
    return 1;
  }
  float low = (float)(exact - fabs(exact) * margin);
  float high = (float)(exact + fabs(exact) * margin);
  *want = bits_of(low);
  return *want == bits_of(high);
}

struct block {
  float a[BLOCK], b[BLOCK], got[BLOCK], reference[BLOCK];
  double exact[BLOCK];
};

static void note(struct udfref_outcome *o, uint64_t index, uint32_t got,
                 uint32_t want) {
  o->wrong++;
  if (o->examples < UDFREF_EXAMPLES) {
    o->example_index[o->examples] = index;
    o->example_got[o->examples] = got;
    o->example_want[o->examples] = want;
    o->examples++;
  }
}

static void judge(const struct udfref_job *job, struct udfref_outcome *o,
                  const struct block *blk, uint64_t start, int64_t n) {
  double margin = ldexp(1, -job->margin_bits);
  int two = job->function >= N_UNARY;
  for (int64_t i = 0; i < n; i++) {
    uint64_t index = start + (uint64_t)i;
    uint32_t got = canonical_bits(blk->got[i]);
    uint32_t want, ref;
    double exact = blk->exact[i];
    int certain = decided(exact, margin, &want);
    if (job->flush &&
        (is_subnormal(blk->a[i]) || (two && is_subnormal(blk->b[i])) ||
         (certain && is_subnormal(from_bits(want))))) {
      o->flushed++;
      continue;
    }
    int agree = certain && want == got;
    if (job->reference) {
      ref = canonical_bits(blk->reference[i]);
      agree &= ref == got;
      if (ref != got)
        o->disagreements++;
    } else {
      ref = want;
      if (certain && want != got)
        o->disagreements++;
    }
    if (job->sample > 0 && index % (uint64_t)job->sample == 0)
      agree = 0;
    // Where reference and double result agree and are certain, they outvote
    // the candidate once MPFR has decided enough of its disagreements.
    int outvoted = certain && ref == want;
    if (!agree && !(outvoted && o->arbitrated >= job->max_arbitrated)) {
      float r;
      udfref_mpfr(job->function, 1, blk->a + i, two ? blk->b + i : NULL, &r);
      want = canonical_bits(r);
      o->arbitrated++;
      if (job->reference && ref != want)
        o->reference_wrong++;
    }
    if (job->flush && is_subnormal(from_bits(want))) {
      o->flushed++;
      continue;
    }
    double error = error_ulp(got, exact);
    int bin = bin_of(error);
    if (bin == UDFREF_BINS - 1 && o->histogram[bin] == 0)
      o->incomparable_index = index;
    o->histogram[bin]++;
    if (error > o->worst_ulp) {
      o->worst_ulp = error;
      o->worst_index = index;
      o->worst_got = got;
    }
    if (got != want)
      note(o, index, got, want);
  }
}

static void keep(const struct block *blk, int64_t n, int two, uint32_t *outputs,
                 uint32_t *normals) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t got = canonical_bits(blk->got[i]);
    int tiny = (got & magnitude) < min_normal || is_subnormal(blk->a[i]) ||
               (two && is_subnormal(blk->b[i]));
    outputs[i] = got;
    normals[i] = tiny ? 0 : got;
  }
}

static int32_t walk(const struct udfref_job *job, struct udfref_outcome *o,
                    uint32_t *outputs, uint32_t *normals) {
  if (!has_form(job->form))
    return 2;
  struct block *blk = aligned_alloc(64, (sizeof *blk + 63) / 64 * 64);
  if (!blk)
    return 1;
  int32_t arity = udfref_arity(job->function);
  for (uint64_t done = 0; done < job->count; done += BLOCK) {
    uint64_t left = job->count - done;
    int64_t n = (int64_t)(left < BLOCK ? left : BLOCK);
    uint64_t start = job->first + done;
    udfref_inputs(arity, job->seed, start, (uint64_t)n, blk->a, blk->b);
    run_candidate(job, arity, done, n, blk->a, blk->b, blk->got);
    keep(blk, n, arity == 2, outputs + done, normals + done);
    if (!o)
      continue;
    const float *b = arity == 2 ? blk->b : NULL;
    if (job->hard)
      o->hard += (uint64_t)((udfref_hard_counter)job->hard)(n, blk->a, b);
    if (job->reference)
      ((udfref_array)job->reference)(n, blk->a, b, blk->reference);
    in_double(job->function, n, blk->a, b, blk->exact);
    judge(job, o, blk, start, n);
  }
  free(blk);
  return 0;
}

int32_t udfref_check(const struct udfref_job *job,
                     struct udfref_outcome *outcome, uint32_t *outputs,
                     uint32_t *normals) {
  memset(outcome, 0, sizeof *outcome);
  return walk(job, outcome, outputs, normals);
}

int32_t udfref_run(const struct udfref_job *job, uint32_t *outputs,
                   uint32_t *normals) {
  return walk(job, NULL, outputs, normals);
}

int32_t udfref_sizes(int32_t which) {
  return which == 0 ? sizeof(struct udfref_job) : sizeof(struct udfref_outcome);
}
