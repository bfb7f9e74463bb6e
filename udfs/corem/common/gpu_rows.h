//===- gpu_rows.h - Rows of tables on GPUs -------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// f(v + d) with the rows of rows_wide.h. d is what an approximation of the GPU
// lacks, up to 2^-22 of v, where rounding a quotient or root loses 2^-24. So
// the polynomial is evaluated for r + d, and not for r.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_ROWS_H
#define UDF_GPU_ROWS_H

#include "gpu.h"
#include "rows_wide.h"

// As udf_rows_wide; w is r + d.
UDF_INLINE float udf_gpu_rows(float r, float d, float w, float more,
                              udf_rows_wide_row e, int *undecided) {
  float high = __builtin_fmaf(e.slope, r, e.value);
  float low = __builtin_fmaf(e.slope, r, e.value - high) + more;
  float q = __builtin_fmaf(w, e.p5, e.p4);
  q = __builtin_fmaf(w, q, e.p3);
  q = __builtin_fmaf(w, q, e.p2);
  // The square of r + d.
  float square = r * __builtin_fmaf(d, 2.0f, r);
  low = __builtin_fmaf(square, q, low);
  float upper = high + low;
  float lower = high + __builtin_fmaf(high, e.width, low);
  *undecided = upper != lower;
  return upper;
}

#endif // UDF_GPU_ROWS_H
