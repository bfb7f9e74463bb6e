//===- quick_range.c - A quick path against long double over a range ------===//
// SPDX-License-Identifier: Apache-2.0
//
// Defined by the compiler's command: SOURCE, the file of the function; QUICK,
// its quick path; EXACT, the function in long double. Reads ranges of arguments
// in C's %a, and prints for each how many arguments it has, how many the path
// decides, and how many of these wrongly. With FLUSH defined the path runs with
// FTZ and DAZ set, and subnormal results do not count.
//
//===----------------------------------------------------------------------===//

#include SOURCE

#include <math.h>
#include <stdio.h>

int main(void) {
  float low, high;
  while (scanf("%a %a", &low, &high) == 2) {
    long all = 0, decided = 0, wrong = 0;
    for (float x = low; x <= high; x = nextafterf(x, INFINITY)) {
      int hard;
#ifdef FLUSH
      __builtin_ia32_ldmxcsr(0x1f80 | 0x8040);
#endif
      float y = QUICK(x, &hard);
#ifdef FLUSH
      __builtin_ia32_ldmxcsr(0x1f80);
      if (fabsl(EXACT((long double)x)) < 0x1p-126L)
        continue;
#endif
      ++all;
      decided += !hard;
      wrong += !hard && y != (float)EXACT((long double)x);
    }
    printf("%ld %ld %ld\n", all, decided, wrong);
  }
}
