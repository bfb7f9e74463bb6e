//===- contract_sixteen.h - What a result in 16 bits is -------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// An operator of docs/reproduce/contract.md in bfloat16 or half takes its
// arguments as float32, in which they are exact, computes what contract.h and
// its siblings say, and rounds each result by ref_narrow. So this file and
// theirs are the contract of every operator in 16 bits.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_SIXTEEN_H
#define UDFTORCH_CONTRACT_SIXTEEN_H

#include "cpu_loops.h"

/// The number of a 16-bit format that is nearest to x, of two the even one; at
/// and above halfway from the largest number to the next power of two,
/// infinity.
///
/// \param digits of the format's significands, with the leading one.
/// \param least normal number, below which its numbers are equally far apart.
/// \param largest finite number.
static float ref_narrow(float x, int digits, double least, double largest) {
  if (!(__builtin_fabsf(x) <= 0x1.fffffep127f)) // an infinity or NaN
    return x;
  double power = least; // the power of two that is not above the magnitude of x
  while (2 * power <= __builtin_fabs(x))
    power *= 2;
  double apart = power / (INT64_C(1) << (digits - 1)); // neighbours of x are
  double big = 0x1.8p52 * apart; // in its binade doubles are as far apart
  double y = ((double)x + big) - big;
  if (__builtin_fabs(y) > largest)
    y = __builtin_inf();
  return (float)__builtin_copysign(y, x);
}

/// Rounds n numbers to bfloat16, or to half, whose numbers float32 has.
EXPORT void ref_narrows(int64_t n, int half, const float *x, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = half ? ref_narrow(x[i], 11, 0x1p-14, 65504.0)
                : ref_narrow(x[i], 8, 0x1p-126, 0x1.fep127);
}

#endif
