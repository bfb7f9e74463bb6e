//===- other_machine.c - One function over encodings from a pipe ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Reads blocks of float32 encodings from standard input and writes the results
// of one function to standard output. A block has BLOCK first arguments and,
// if ARITY is 2, as many second arguments.
//
// With SOURCE, FAST and ACCURATE the function is compiled from its C source, as
// a loop that LLVM may vectorise for the target. With BUILT it is a form of a
// library that was built before: the array form, with LANES the scalar (1) or a
// vector form, with SCALABLE the one of an SVE register.
//
//===----------------------------------------------------------------------===//

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK 4096

#if defined(BUILT) && defined(SCALABLE)
#include <arm_sve.h>
#if ARITY == 1
svfloat32_t BUILT(svfloat32_t);
#define CALL(x, y, i) BUILT(svld1_f32(all, (x) + (i)))
#else
svfloat32_t BUILT(svfloat32_t, svfloat32_t);
#define CALL(x, y, i)                                                          \
  BUILT(svld1_f32(all, (x) + (i)), svld1_f32(all, (y) + (i)))
#endif

static void run(const float *x, const float *y, float *result) {
  const svbool_t all = svptrue_b32();
  (void)y;
  for (int i = 0; i < BLOCK; i += (int)svcntw())
    svst1_f32(all, result + i, CALL(x, y, i));
}
#define RUN(x, y, result) run(x, y, result)

#elif defined(BUILT) && defined(LANES)
#if ARITY == 1
#define PARAMETERS(T) T
#define CALL(x, y, i) BUILT((x)[i])
#else
#define PARAMETERS(T) T, T
#define CALL(x, y, i) BUILT((x)[i], (y)[i])
#endif
#if LANES == 1
typedef float form;
#else
typedef float form __attribute__((vector_size(4 * LANES)));
#endif
form BUILT(PARAMETERS(form));

static void run(const float *x, const float *y, float *result) {
  const form *a = (const form *)x, *b = (const form *)y;
  (void)b;
  for (int i = 0; i < BLOCK / LANES; ++i)
    ((form *)result)[i] = CALL(a, b, i);
}
#define RUN(x, y, result) run(x, y, result)

#elif defined(BUILT)
#if ARITY == 1
void BUILT(int64_t n, const float *x, float *result, int64_t mode);
#define RUN(x, y, result) BUILT(BLOCK, x, result, 0)
#else
void BUILT(int64_t n, const float *x, const float *y, float *result,
           int64_t mode);
#define RUN(x, y, result) BUILT(BLOCK, x, y, result, 0)
#endif
#else

#include SOURCE

#if ARITY == 1
#define CALL(name, i, ...) name(x[i], ##__VA_ARGS__)
#else
#define CALL(name, i, ...) name(x[i], y[i], ##__VA_ARGS__)
#endif

static void run(const float *restrict x, const float *restrict y,
                float *restrict result) {
  int hard[BLOCK];
  (void)y;
  for (int i = 0; i < BLOCK; ++i)
    result[i] = CALL(FAST, i, &hard[i]);
  for (int i = 0; i < BLOCK; ++i)
    if (hard[i])
      result[i] = CALL(ACCURATE, i);
}
#define RUN(x, y, result) run(x, y, result)
#endif

int main(void) {
  static _Alignas(64) float arguments[2][BLOCK], result[BLOCK];
  while (fread(arguments, sizeof arguments[0], ARITY, stdin) == ARITY) {
    RUN(arguments[0], arguments[1], result);
    if (fwrite(result, sizeof result, 1, stdout) != 1)
      return EXIT_FAILURE;
  }
  return ferror(stdin) ? EXIT_FAILURE : EXIT_SUCCESS;
}
