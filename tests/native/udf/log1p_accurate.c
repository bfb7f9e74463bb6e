//===- log1p_accurate.c - The accurate path of log1p, step by step --------===//
// SPDX-License-Identifier: Apache-2.0
//
// Defined by the compiler's command: LOG1P, the source. Reads arguments, and
// prints for each what 128 bits give: the result and its distance from the
// middle of two doubles, in hex; and the result of 512 bits.
//
//===----------------------------------------------------------------------===//

#include <stdio.h>

#include LOG1P

int main(void) {
  for (double x; scanf("%la", &x) == 1;) {
    double near = 1.0 + x;
    udf_pow_rounded found = udf_log1p_short(x, near);
    double value = x < 0 ? -found.value : found.value;
    printf("%a %016llx%016llx %a\n", value,
           (unsigned long long)(found.distance >> 64),
           (unsigned long long)found.distance, udf_log1p_long(x, near));
  }
  return 0;
}
