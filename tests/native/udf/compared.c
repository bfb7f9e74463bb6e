//===- compared.c - Forms beside the author's functions, in one program ---===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// For processors that only an emulator runs here. Prints, for each function of
// probe.h and each form, how many results were compared and how many differ.
// Every NaN is the same, as the NaN that an operation makes differs between
// processors and between the operands that a compiler puts first.
//
//===----------------------------------------------------------------------===//

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { Most = 260, Guard = 8 };

static uint64_t State = 2026;

// Numerical Recipes' 64-bit linear congruential generator.
static uint64_t next(void) {
  State = State * 6364136223846793005u + 1442695040888963407u;
  return State ^ State >> 29;
}

#define DEFINE(T, W)                                                           \
  static T a_##T[Most], b_##T[Most], want_##T[Most],                           \
      got_##T[Most + 2 * Guard];                                               \
  static void fill_##T(void) {                                                 \
    static const T special[] = {0, -0.0, 1, -1, 1 / 0.0, -1 / 0.0, 0 / 0.0};   \
    for (int i = 0; i < Most; ++i) {                                           \
      W words[2] = {(W)next(), (W)next()};                                     \
      memcpy(&a_##T[i], &words[0], sizeof(T));                                 \
      memcpy(&b_##T[i], &words[1], sizeof(T));                                 \
      if (next() % 2)                                                          \
        a_##T[i] = (T)(int32_t)next() * (T)0x1p-26;                            \
      if (next() % 8 == 0)                                                     \
        b_##T[i] = special[next() % 7];                                        \
      if (next() % 8 == 0)                                                     \
        a_##T[i] = special[next() % 7];                                        \
    }                                                                          \
  }                                                                            \
  static int same_##T(T x, T y) {                                              \
    return (x != x && y != y) || !memcmp(&x, &y, sizeof x);                    \
  }                                                                            \
  static int different_##T(const T *got, int n) {                              \
    int count = 0;                                                             \
    for (int i = 0; i < n; ++i)                                                \
      count += !same_##T(got[i], want_##T[i]);                                 \
    return count;                                                              \
  }

DEFINE(float, uint32_t)
DEFINE(double, uint64_t)

#define ARGUMENTS1(T) a_##T
#define ARGUMENTS2(T) a_##T, b_##T

#define PARAMETERS1(T) const T *, T *
#define PARAMETERS2(T) const T *, const T *, T *

#define COMPARE(name, T, arity, lanes)                                         \
  void reference_##name(int64_t, PARAMETERS##arity(T));                        \
  void shim_##name(int64_t, PARAMETERS##arity(T));                             \
  void shim_##name##_v##lanes(int64_t, PARAMETERS##arity(T));                  \
  void __udf_##name##_array(int64_t, PARAMETERS##arity(T), int64_t);           \
  static void compare_##name(void) {                                           \
    long count[3] = {0, 0, 0}, wrong[3] = {0, 0, 0}, outside = 0;              \
    for (int round = 0; round < 400; ++round) {                                \
      fill_##T();                                                              \
      reference_##name(Most, ARGUMENTS##arity(T), want_##T);                   \
      shim_##name(Most, ARGUMENTS##arity(T), got_##T);                         \
      wrong[0] += different_##T(got_##T, Most);                                \
      shim_##name##_v##lanes(Most, ARGUMENTS##arity(T), got_##T);              \
      wrong[1] += different_##T(got_##T, Most);                                \
      int n = round < 66 ? round : (int)(next() % (Most + 1));                 \
      memset(got_##T, 0x5a, sizeof got_##T);                                   \
      __udf_##name##_array(n, ARGUMENTS##arity(T), got_##T + Guard, 0);        \
      wrong[2] += different_##T(got_##T + Guard, n);                           \
      for (size_t i = 0; i < sizeof got_##T; ++i)                              \
        if (i < Guard * sizeof(T) || i >= (size_t)(Guard + n) * sizeof(T))     \
          outside += ((unsigned char *)got_##T)[i] != 0x5a;                    \
      count[0] += Most, count[1] += Most, count[2] += n;                       \
    }                                                                          \
    printf(#name " scalar %ld %ld\n", count[0], wrong[0]);                     \
    printf(#name " v" #lanes " %ld %ld\n", count[1], wrong[1]);                \
    printf(#name " array %ld %ld\n", count[2], wrong[2]);                      \
    printf(#name " outside 1 %ld\n", outside);                                 \
  }

COMPARE(expf, float, 1, 4)
COMPARE(lookupf, float, 1, 4)
COMPARE(exp, double, 1, 2)
COMPARE(hypotf, float, 2, 4)
COMPARE(hypot, double, 2, 2)
COMPARE(stepf, float, 1, 4)
COMPARE(step, double, 2, 2)

int main(void) {
  compare_expf();
  compare_lookupf();
  compare_exp();
  compare_hypotf();
  compare_hypot();
  compare_stepf();
  compare_step();
  return 0;
}
