//===- stand_in.c - The math library of an untouched ATen -----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Defines the names that ATen's kernels call as calls of the UDFs' forms: the
// linker's way of doing what udf-replace does, and so its oracle.
//
//===----------------------------------------------------------------------===//

#include <immintrin.h>

#ifdef __AVX512F__
#define VECTOR __m512
#define LANES 16
#else
#define VECTOR __m256
#define LANES 8
#endif

#define JOIN(a, b, c) a##b##c
#define SLEEF(name, lanes) JOIN(Sleef_##name, lanes, _u10)
#define FORM(name, lanes) JOIN(__udf_##name, _v, lanes)

#define STAND_IN(name)                                                         \
  float __udf_##name(float);                                                   \
  VECTOR FORM(name, LANES)(VECTOR);                                            \
  float name(float x) { return __udf_##name(x); }                              \
  VECTOR SLEEF(name, LANES)(VECTOR x) { return FORM(name, LANES)(x); }

STAND_IN(expf)
STAND_IN(expm1f)
STAND_IN(logf)
