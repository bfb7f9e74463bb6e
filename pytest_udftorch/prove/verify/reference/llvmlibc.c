//===- llvmlibc.c - Array wrappers of LLVM-libc's float functions ---------===//
// SPDX-License-Identifier: Apache-2.0
//
// The archive libllvmlibc.a defines expf, memcpy and the rest under their plain
// names, hidden.  Linking it into a program would replace the C library there,
// so these wrappers become a shared library of their own, and they name each
// function by its mangled C++ name, which only the archive has.
//
// The build passes
//   -DNAMESPACE="_ZN19__llvm_libc_19_1_7_"   the start of those names
//   -DWRAPPERS=WRAP_1(exp, "4") ...          one for each function it found
//
//===----------------------------------------------------------------------===//

#include "reference.h"

// Itanium C++ ABI: expf(float) in a namespace is <start> 4expf E f.
#define WRAP_1(name, length)                                                   \
  float callee_##name(float) __asm__(NAMESPACE length #name "fEf");            \
  UDFREF_EXPORT void udfref_llvmlibc_##name(int64_t n, const float *a,         \
                                            const float *b, float *out) {      \
    (void)b;                                                                   \
    for (int64_t i = 0; i < n; i++)                                            \
      out[i] = callee_##name(a[i]);                                            \
  }

#define WRAP_2(name, length)                                                   \
  float callee_##name(float, float) __asm__(NAMESPACE length #name "fEff");    \
  UDFREF_EXPORT void udfref_llvmlibc_##name(int64_t n, const float *a,         \
                                            const float *b, float *out) {      \
    for (int64_t i = 0; i < n; i++)                                            \
      out[i] = callee_##name(a[i], b[i]);                                      \
  }

WRAPPERS
