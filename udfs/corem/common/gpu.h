//===- gpu.h - Building blocks of the paths for GPUs ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// A path for GPUs has the type of a fast path and goes before it: where it
// leaves *hard zero, its result is the function's. It counts slots for
// instructions: a double instruction takes two, and a double constant of more
// than 21 bits half of one. So
//
//   * what is small beside the result is computed in float, above all the last
//     terms of a polynomial: their rounding errors weigh as little as they do;
//   * roots and quotients start from the GPU's approximations in float, with
//     22 bits and more, and the remainder, which one fused operation gives
//     exactly, makes 44 of them, in two floats;
//   * the sum, and the test of its rounding, are double.
//
// The margins of the tests cover the errors that the headers of the functions
// give. That they do is not proved: a run of all inputs on a GPU confirms it
// (benches.experiments.cuda_digests).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_H
#define UDF_GPU_H

#include "corem.h"

#include "gpu_constants.h"

// PTX ISA, rsqrt.approx.ftz.f32: relative error below 2^-22.9; rcp.approx.ftz:
// one unit in the last place. Tests on a CPU give others.
#ifdef __NVPTX__
#define UDF_GPU_RSQRT(x) __nvvm_rsqrt_approx_ftz_f(x)
#define UDF_GPU_RCP(x) __nvvm_rcp_approx_ftz_f(x)
#elif !defined UDF_GPU_RSQRT
#define UDF_GPU_RSQRT(x) (1.0f / __builtin_sqrtf(x))
#define UDF_GPU_RCP(x) (1.0f / (x))
#endif

// The upper word of a double, and a double of two words. The compiler would add
// to 64 bits otherwise.
#ifdef __NVPTX__
#define UDF_GPU_HIGH(x) ((uint32_t)__nvvm_d2i_hi(x))
#define UDF_GPU_LOW(x) ((uint32_t)__nvvm_d2i_lo(x))
#define UDF_GPU_WORDS(high, low) __nvvm_lohi_i2d((int)(low), (int)(high))
#else
#define UDF_GPU_HIGH(x) ((uint32_t)(udf_f64_bits(x) >> 32))
#define UDF_GPU_LOW(x) ((uint32_t)udf_f64_bits(x))
#define UDF_GPU_WORDS(high, low)                                               \
  udf_f64_from_bits((uint64_t)(high) << 32 | (low))
#endif

// Adds to the upper word of a double: to its sign and its exponent.
UDF_INLINE double udf_gpu_add_high(double x, uint32_t high) {
  return UDF_GPU_WORDS(UDF_GPU_HIGH(x) + high, UDF_GPU_LOW(x));
}

// udf_near_boundary of the lower word.
UDF_INLINE int udf_gpu_near_boundary(double r, uint32_t margin) {
#ifdef UDF_GPU_WATCH
  UDF_GPU_WATCH(r);
#endif
  uint32_t shifted = UDF_GPU_LOW(r) + (UINT32_C(0x10000000) + margin);
  return (shifted & (UINT32_C(0x1fffffff) & ~(2 * margin - 1))) == 0;
}

#endif // UDF_GPU_H
