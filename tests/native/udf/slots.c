//===- slots.c - The runtime on a processor that an emulator runs ---------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// With CALLER: a library that calls functions through slots. Without: a program
// that finds these slots with the runtime, sends them through counting
// trampolines to functions of its own, and restores them.
//
//===----------------------------------------------------------------------===//

typedef float floats __attribute__((vector_size(16)));

floats mixed(floats a, double b, int c, floats d, float e);
float caller_scalar(float x);
floats caller_mixed(floats a);

#ifdef CALLER
float expf(float);

float caller_scalar(float x) { return expf(x) + 1.0f; }
// Weak, or the compiler would call it without a slot.
__attribute__((weak)) floats mixed(floats a, double b, int c, floats d,
                                   float e) {
  return a + d + (float)b + (float)c + e;
}
floats caller_mixed(floats a) { return mixed(a, 2.0, 3, a * 2.0f, 5.0f); }
#else
#include "udfrt.h"

#include <stdio.h>
#include <string.h>

static const char *const Symbols[] = {"expf", "mixed"};
static const char *const Objects[] = {"libcaller.so"};

static float times(float x) { return x * 100.0f; }

// Every argument counts, so that a trampoline that spoils one shows.
static floats other(floats a, double b, int c, floats d, float e) {
  return a * 1000.0f + d * (float)b + (float)(c * 7) + e;
}

static int same(floats a, floats b) { return !memcmp(&a, &b, sizeof a); }

int main(int argc, char **argv) {
  struct udfrt_slot slots[8], file[8];
  uint64_t before[8], after[8], wanted[8];
  uint32_t machine = 0;
  floats x = {1.0f, 2.0f, 3.0f, 4.0f};
  if (argc != 2)
    return 1;
  float scalar = caller_scalar(1.5f);
  floats vector = caller_mixed(x);
  printf("level %d\n", udfrt_cpu_level());
  long count = udfrt_find(Symbols, 2, Objects, 1, slots, 8);
  printf("slots %ld\n", count);
  long filed = udfrt_find_in_file(argv[1], Symbols, 2, file, 8, &machine);
  if (machine != 183) // EM_AARCH64
    return 2;
  printf("file %ld\n", filed);
  if (count != filed)
    return 3;
  for (long i = 0; i < count; ++i) {
    if (slots[i].type != file[i].type || slots[i].symbol != file[i].symbol ||
        slots[i].address - file[i].address !=
            slots[0].address - file[0].address)
      return 4;
    wanted[i] = udfrt_trampoline(slots[i].symbol);
  }
  udfrt_targets[0] = (uint64_t)times;
  udfrt_targets[1] = (uint64_t)other;
  udfrt_read(slots, (size_t)count, before);
  if (udfrt_exchange(slots, (size_t)count, before, wanted, after))
    return 5;
  if (caller_scalar(1.5f) != 151.0f)
    return 6;
  if (!same(caller_mixed(x), other(x, 2.0, 3, x * 2.0f, 5.0f)))
    return 7;
  printf("hits %d\n", (int)(udfrt_hits[0] + udfrt_hits[1]));
  for (long i = 0; i < count; ++i) {
    after[i] = udfrt_marker(slots[i].symbol);
    udfrt_marked[i] = udfrt_targets[i];
  }
  if (udfrt_exchange(slots, (size_t)count, wanted, after, wanted))
    return 11;
  if (caller_scalar(1.5f) != 151.0f || !udfrt_marks[0] || udfrt_marks[1])
    return 12;
  if (!same(caller_mixed(x), other(x, 2.0, 3, x * 2.0f, 5.0f)) ||
      caller_scalar(1.5f) != 151.0f || !udfrt_marks[1])
    return 13;
  if (udfrt_exchange(slots, (size_t)count, after, before, wanted))
    return 8;
  if (caller_scalar(1.5f) != scalar || !same(caller_mixed(x), vector))
    return 9;
  puts("restored");
  return udfrt_hits[0] == 1 && udfrt_hits[1] == 1 ? 0 : 10;
}
#endif
