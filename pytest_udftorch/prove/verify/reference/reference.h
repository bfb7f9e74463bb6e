//===- reference.h - Shared by the references and the checker -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// verify/reference/checker.py mirrors the structures udfref_job and
// udfref_outcome field for field; it compares their sizes when it loads the
// checker.
//
//===----------------------------------------------------------------------===//

#ifndef UDFREF_REFERENCE_H
#define UDFREF_REFERENCE_H

#include <stdint.h>
#include <string.h>

#define UDFREF_EXPORT __attribute__((visibility("default")))

// MPFR's and the C library's functions have the same names.
#define UDFREF_UNIVARIATE(X)                                                   \
  X(exp)                                                                       \
  X(exp2)                                                                      \
  X(expm1)                                                                     \
  X(log)                                                                       \
  X(log2)                                                                      \
  X(log10)                                                                     \
  X(log1p)                                                                     \
  X(sin)                                                                       \
  X(cos)                                                                       \
  X(tan)                                                                       \
  X(sinh)                                                                      \
  X(cosh)                                                                      \
  X(tanh)                                                                      \
  X(asin)                                                                      \
  X(acos)                                                                      \
  X(atan)                                                                      \
  X(asinh)                                                                     \
  X(acosh)                                                                     \
  X(atanh)                                                                     \
  X(erf)                                                                       \
  X(erfc)

// Activations as functions of one argument; composites.c says which they are.
#define UDFREF_COMPOSITES(X)                                                   \
  X(sigmoid)                                                                   \
  X(silu)                                                                      \
  X(softplus)                                                                  \
  X(logsigmoid)                                                                \
  X(gelu_erf)                                                                  \
  X(gelu_tanh)                                                                 \
  X(mish)                                                                      \
  X(elu)                                                                       \
  X(selu)                                                                      \
  X(rsqrt)

#define UDFREF_BIVARIATE(X)                                                    \
  X(pow)                                                                       \
  X(atan2)                                                                     \
  X(hypot)

// A reference over arrays; b is NULL for functions of one argument.
typedef void (*udfref_array)(int64_t n, const float *a, const float *b,
                             float *out);

// Counts the inputs for which a UDF's fast path says "hard to round".
typedef int64_t (*udfref_hard_counter)(int64_t n, const float *a,
                                       const float *b);

enum udfref_form {
  UDFREF_ARRAY, // void(int64_t n, const float *a, float *out, int64_t mode),
                // or with b after a
  UDFREF_SCALAR,
  UDFREF_V8,
  UDFREF_V16,
  UDFREF_GIVEN // the candidate is an array of count results
};

// What stands beside an input, where a form takes several at once.
enum udfref_beside {
  UDFREF_INPUTS, // the next inputs
  UDFREF_RANDOM, // random bits; vector forms only
  UDFREF_EASY    // an argument that no path finds hard
};

// Bins of the histogram: 64 of 1/64 ULP below 1 ULP, then one per power of
// two, then one for results that no error can be given for (a NaN against a
// number, a finite result against a pole).
enum { UDFREF_FINE = 64, UDFREF_COARSE = 64 };
enum { UDFREF_BINS = UDFREF_FINE + UDFREF_COARSE + 1 };

enum { UDFREF_EXAMPLES = 16 };

struct udfref_job {
  uint64_t first;          // index of the first input
  uint64_t count;          // inputs
  uint64_t seed;           // of the pairs; unused for one argument
  const void *candidate;   // the function to check, of the given form
  const void *reference;   // udfref_array, or NULL for the double rounding test
  const void *hard;        // udfref_hard_counter, or NULL
  uint64_t max_arbitrated; // disagreements that MPFR decides, at most
  int64_t mode;            // last argument of the array form
  int32_t function;        // index in the lists above, in their order
  int32_t form;            // enum udfref_form
  int32_t flush;           // 1: FTZ and DAZ on while the candidate runs
  int32_t beside;          // enum udfref_beside
  int32_t margin_bits;     // the double result is trusted to 2^-margin_bits
  int32_t sample;          // every sample-th input goes to MPFR too; 0: none
  float easy;              // what stands beside an input with UDFREF_EASY
};

struct udfref_outcome {
  uint64_t wrong;           // candidate against the decided result
  uint64_t reference_wrong; // reference against the decided result
  uint64_t disagreements;   // candidate against reference
  uint64_t arbitrated;      // inputs that MPFR decided
  uint64_t flushed;         // not judged: subnormal input or result, flush on
  uint64_t hard;            // inputs whose fast path is not certain
  uint64_t histogram[UDFREF_BINS];
  uint64_t examples; // wrong results listed below, the first ones
  uint64_t example_index[UDFREF_EXAMPLES];
  uint32_t example_got[UDFREF_EXAMPLES];
  uint32_t example_want[UDFREF_EXAMPLES];
  double worst_ulp; // largest error among those that have one
  uint64_t worst_index;
  uint64_t worst_got;          // its result's encoding
  uint64_t incomparable_index; // first input in the last bin
};

static inline float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Fill a (and b) with the inputs first, first + 1, ...
UDFREF_EXPORT void udfref_inputs(int32_t arity, uint64_t seed, uint64_t first,
                                 uint64_t count, float *a, float *b);

// Run the candidate and judge it.  outputs receives its encodings with NaNs
// canonical; normals the same with 0 wherever the input or the result is
// subnormal or the result is zero, which is what must not depend on flushing.
// Returns 0, or 1 when memory ran out, or 2 when the
// processor lacks the form.
UDFREF_EXPORT int32_t udfref_check(const struct udfref_job *job,
                                   struct udfref_outcome *outcome,
                                   uint32_t *outputs, uint32_t *normals);

// The same without a judgement.
UDFREF_EXPORT int32_t udfref_run(const struct udfref_job *job,
                                 uint32_t *outputs, uint32_t *normals);

// Correctly rounded results, by MPFR.
UDFREF_EXPORT void udfref_mpfr(int32_t function, int64_t n, const float *a,
                               const float *b, float *out);

// A composite, by its place in its list: in double, and rounded to float32.
extern double (*const udfref_double_composites[])(double);
float udfref_mpfr_composite(int32_t number, float x);

// Names in the order of the lists, NULL beyond; arity of each; sizes of the
// structures, to compare with the caller's.
UDFREF_EXPORT const char *udfref_name(int32_t function);
UDFREF_EXPORT int32_t udfref_arity(int32_t function);
UDFREF_EXPORT int32_t udfref_sizes(int32_t which);
UDFREF_EXPORT const char *udfref_mpfr_version(void);

#endif
