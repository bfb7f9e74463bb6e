//===- quick_pairs.c - A quick path of two arguments against long double --===//
// SPDX-License-Identifier: Apache-2.0
//
// Defined by the compiler's command: SOURCE, the file of the function; QUICK,
// its quick path; EXACT, the function in long double. Reads two arguments in
// C's %a and a count, and takes as many first arguments from the one that is
// given on. Prints for each line how many pairs it has, how many the path
// decides, and how many of these wrongly.
//
//===----------------------------------------------------------------------===//

#include SOURCE

#include <math.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  float first, second;
  long count;
  while (scanf("%a %a %ld", &first, &second, &count) == 3) {
    long decided = 0, wrong = 0;
    for (long i = 0; i < count; ++i, first = nextafterf(first, INFINITY)) {
      int hard;
      float found = QUICK(first, second, &hard);
      float exact = (float)EXACT((long double)first, (long double)second);
      int same = memcmp(&found, &exact, sizeof found) == 0 ||
                 (found != found && exact != exact);
      decided += !hard;
      wrong += !hard && !same;
    }
    printf("%ld %ld %ld\n", count, decided, wrong);
  }
}
