//===- expf_gpu.c - Correctly rounded float32 exp on GPUs -----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The quick path at AVX-512, expf_wide.c. Its tables are of 128 bytes, a line
// of the cache: a warp reads 32 entries of one at a time.
//
// All operations are those of IEEE 754, and no approximation of the GPU is
// among them. So the results are those of AVX-512, and a run of all 2^32
// arguments on a CPU found no wrong one.
//
// Arguments from 75 on are left to the fast path, and those below -75 that have
// another result than 0.
//
//===----------------------------------------------------------------------===//

#include "expf.c"

#include "expf_wide.c"

UDF_INLINE float udf_expf_gpu(float x, int *hard) {
  return udf_expf_wide(x, hard);
}
