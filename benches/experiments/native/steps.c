/* SPDX-License-Identifier: Apache-2.0 */
//===- steps.c - The instructions that a call executes --------------------===//
//
// Each function here calls a form of a math function in a child process, one
// instruction at a time, and writes down where every instruction lies; those of
// the loop around the calls are among them. Returns their number, or -1 where
// the system does not let a process trace its child, -2 when `most` are too
// few.
//
//===----------------------------------------------------------------------===//

#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
// What marks the beginning and the end of the calls.
#define BREAKPOINT __asm__ volatile("int3")
#define BREAKPOINT_CODE 0xcc

typedef void (*array_function)(int64_t, const float *, float *, int64_t);
typedef void (*array_pairs)(int64_t, const float *, const float *, float *,
                            int64_t);
typedef float (*scalar_function)(float);
typedef float (*scalar_pairs)(float, float);
typedef __m256 (*v8_function)(__m256);
typedef __m256 (*v8_pairs)(__m256, __m256);
typedef __m512 (*v16_function)(__m512);
typedef __m512 (*v16_pairs)(__m512, __m512);

static int stopped(pid_t child) {
  int status;
  pid_t found;
  do
    found = waitpid(child, &status, 0);
  while (found < 0 && errno == EINTR);
  return found == child && WIFSTOPPED(status);
}

static int64_t follow(pid_t child, uint64_t *where, int64_t most) {
  int64_t n = 0;
  if (!stopped(child) || ptrace(PTRACE_CONT, child, 0, 0) || !stopped(child))
    return -1;
  for (;;) {
    if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || !stopped(child))
      return -1;
    long rip = ptrace(PTRACE_PEEKUSER, child,
                      (void *)offsetof(struct user_regs_struct, rip), 0);
    long code = ptrace(PTRACE_PEEKTEXT, child, (void *)rip, 0);
    if ((code & 0xff) == BREAKPOINT_CODE)
      return n;
    if (n == most)
      return -2;
    where[n++] = (uint64_t)rip;
  }
}

// The calls run once before they are followed, so that symbols are bound.
#define FOLLOW(calls)                                                          \
  do {                                                                         \
    pid_t child = fork();                                                      \
    if (child < 0)                                                             \
      return -1;                                                               \
    if (child == 0) {                                                          \
      if (ptrace(PTRACE_TRACEME, 0, 0, 0))                                     \
        _exit(1);                                                              \
      calls;                                                                   \
      raise(SIGSTOP);                                                          \
      BREAKPOINT;                                                              \
      calls;                                                                   \
      BREAKPOINT;                                                              \
      _exit(0);                                                                \
    }                                                                          \
    int64_t found = follow(child, where, most);                                \
    kill(child, SIGKILL);                                                      \
    waitpid(child, 0, 0);                                                      \
    return found;                                                              \
  } while (0)

// Of functions of one argument, b is null.

EXPORT int64_t steps_array(void *f, int64_t n, const float *a, const float *b,
                           float *out, uint64_t *where, int64_t most) {
  if (b)
    FOLLOW(((array_pairs)f)(n, a, b, out, 0));
  FOLLOW(((array_function)f)(n, a, out, 0));
}

EXPORT int64_t steps_scalar(void *f, int64_t n, const float *a, const float *b,
                            float *out, uint64_t *where, int64_t most) {
  if (b)
    FOLLOW(for (int64_t i = 0; i < n; ++i) out[i] =
               ((scalar_pairs)f)(a[i], b[i]));
  FOLLOW(for (int64_t i = 0; i < n; ++i) out[i] = ((scalar_function)f)(a[i]));
}

__attribute__((target("avx2"))) EXPORT int64_t
steps_v8(void *f, int64_t n, const float *a, const float *b, float *out,
         uint64_t *where, int64_t most) {
  if (b)
    FOLLOW(for (int64_t i = 0; i + 8 <= n; i += 8) _mm256_storeu_ps(
        out + i,
        ((v8_pairs)f)(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i))));
  FOLLOW(for (int64_t i = 0; i + 8 <= n; i += 8) _mm256_storeu_ps(
      out + i, ((v8_function)f)(_mm256_loadu_ps(a + i))));
}

__attribute__((target("avx512f"))) EXPORT int64_t
steps_v16(void *f, int64_t n, const float *a, const float *b, float *out,
          uint64_t *where, int64_t most) {
  if (b)
    FOLLOW(for (int64_t i = 0; i + 16 <= n; i += 16) _mm512_storeu_ps(
        out + i,
        ((v16_pairs)f)(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i))));
  FOLLOW(for (int64_t i = 0; i + 16 <= n; i += 16) _mm512_storeu_ps(
      out + i, ((v16_function)f)(_mm512_loadu_ps(a + i))));
}
