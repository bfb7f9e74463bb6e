//===- victim.c - A library that calls its math functions through slots ---===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// What libtorch is to a session, small: a jump slot for each function, and
// pointers to them in data that the loader relocates.
//
//===----------------------------------------------------------------------===//

#include <math.h>

float (*const victim_table[])(float) = {expf, logf, sinf};

float victim_call(unsigned which, float x) {
  switch (which % 6) {
  case 0:
    return expf(x);
  case 1:
    return logf(x);
  case 2:
    return sinf(x);
  default:
    return victim_table[which % 3](x);
  }
}
