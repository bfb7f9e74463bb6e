//===- cpu_variates.h - Normal variates from uniform ones -----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The method of Box and Muller (A note on the generation of random normal
// deviates, 1958), in the order of libtorch: of each 16 uniform variates the
// first eight give radii and the others angles.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CPU_VARIATES_H
#define UDFTORCH_CPU_VARIATES_H

#include "cpu_loops.h"

enum { HALF_BLOCK = 8 };

struct variates {
  float *x;
  int64_t n; ///< a multiple of 2 * HALF_BLOCK
  float mean, std;
  array1 *const *f; ///< log, cos, sin
  const struct threads *t;
  struct shares shares;
};

static void variates_share(const struct variates *v, int64_t begin,
                           int64_t end) {
  float radius[PIECE / 2], cosine[PIECE / 2], sine[PIECE / 2];
  for (int64_t at = begin; at < end; at += PIECE) {
    float *x = v->x + at;
    int64_t n = (end - at < PIECE ? end - at : PIECE) / 2;
    for (int64_t block = 0; block < n; block += HALF_BLOCK)
      for (int i = 0; i < HALF_BLOCK; ++i) {
        radius[block + i] = 1.0f - x[2 * block + i];
        cosine[block + i] = 0x1.921fb6p+2f * x[2 * block + HALF_BLOCK + i];
      }
    memcpy(sine, cosine, n * sizeof(float));
    v->f[0](n, radius, radius, 0);
    v->f[1](n, cosine, cosine, 0);
    v->f[2](n, sine, sine, 0);
    EACH radius[i] = __builtin_sqrtf(-2.0f * radius[i]);
    // libtorch fuses the last product and sum, too.
    EACH cosine[i] = __builtin_fmaf(radius[i] * cosine[i], v->std, v->mean);
    EACH sine[i] = __builtin_fmaf(radius[i] * sine[i], v->std, v->mean);
    for (int64_t block = 0; block < n; block += HALF_BLOCK) {
      memcpy(x + 2 * block, cosine + block, HALF_BLOCK * sizeof(float));
      memcpy(x + 2 * block + HALF_BLOCK, sine + block,
             HALF_BLOCK * sizeof(float));
    }
  }
}

/// Blocks do not depend on each other, so the number of threads changes no bit.
static void variates_part(void *data) {
  struct variates *v = data;
  int64_t begin, end;
  while (take(&v->shares, &begin, &end))
    variates_share(v, begin, end);
}

static void variates_run(void *data) {
  struct variates *v = data;
  share_elements(v->t, &v->shares, v->n, GRAIN, variates_part, v);
}

/// Turns uniform variates in [0, 1) into normal ones, in place.
/// \p f is an array of array1 *, and \p t a struct threads.
EXPORT void normal_variates(float *x, int64_t n, float mean, float std,
                            const void *f, const void *t) {
  struct variates v = {x, n, mean, std, f, t, {0}};
  run_kernel(t, variates_run, &v);
}

#endif
