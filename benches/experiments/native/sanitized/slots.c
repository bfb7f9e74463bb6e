//===- slots.c - Exchanges slots under threads that call through them -----===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
//     slots ROUNDS LIBRARY...
//
// Each library is victim.c, linked in its own way. Prints how many calls the
// threads made and how many slots were exchanged. Its exit status is 1 if
// anything is not as udfrt.h says; what else is wrong, a sanitizer reports.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include "names.h"
#include "udfrt.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Threads = 3, MostLibraries = 4, MostSlots = 64, Ours = 3 };

#define MUST(Truth) ((Truth) ? (void)0 : fail(__LINE__, #Truth))

static void fail(int Line, const char *Truth) {
  fprintf(stderr, "slots.c:%d: not %s\n", Line, Truth);
  exit(1);
}

typedef float Call(unsigned, float);

static const char *const Names[] = {"expf", "logf", "sinf"};
static const char *Objects[MostLibraries];
static Call *Calls[MostLibraries];
static int Libraries;
static struct udfrt_slot Slots[MostSlots];
static size_t Count;
static int Done;

static float ourExp(float X) { return X + 1000; }
static float ourLog(float X) { return X + 2000; }
static float ourSin(float X) { return X + 3000; }
static float (*const Replacing[Ours])(float) = {ourExp, ourLog, ourSin};
static float (*const Stock[Ours])(float) = {expf, logf, sinf};

static void *callThrough(void *Counted) {
  long Made = 0;
  uint64_t Values[MostSlots];
  while (!__atomic_load_n(&Done, __ATOMIC_RELAXED)) {
    for (int L = 0; L < Libraries; ++L)
      for (unsigned F = 0; F < 6; ++F) {
        const float X = 0.5f + (float)(Made % 7);
        const float Y = Calls[L](F, X);
        MUST(Y == Stock[F % 3](X) || Y == Replacing[F % 3](X));
        ++Made;
      }
    // The loads of the jumps above are in code that no sanitizer sees.
    udfrt_read(Slots, Count, Values);
    for (size_t I = 0; I < Count; ++I)
      MUST(Values[I]);
  }
  *(long *)Counted = Made;
  return NULL;
}

/// Finds the slots with every capacity, in memory of just that size.
static void findAll(void) {
  const long All =
      udfrt_find(Names, Ours, Objects, (size_t)Libraries, Slots, MostSlots);
  MUST(All >= 2 * Ours * Libraries && All <= MostSlots);
  Count = (size_t)All;
  for (size_t Room = 0; Room <= Count; ++Room) {
    struct udfrt_slot *Some = malloc(Room * sizeof *Some);
    MUST(udfrt_find(Names, Ours, Objects, (size_t)Libraries, Some, Room) ==
         All);
    for (size_t I = 0; I < Room; ++I)
      MUST(Some[I].address == Slots[I].address);
    free(Some);
  }
  static const char *const Absent[] = {"absent.so"};
  MUST(udfrt_find(Names, Ours, Absent, 1, Slots + Count, 0) == 0);
  MUST(udfrt_find(Names, 0, Objects, (size_t)Libraries, NULL, 0) == 0);
}

/// The file of a loaded library has the slots that the loaded one has.
static void findInFile(const char *Path, size_t Library) {
  size_t Loaded = 0;
  for (size_t I = 0; I < Count; ++I)
    Loaded += Slots[I].object == Library;
  for (size_t Room = 0; Room <= Loaded; ++Room) {
    uint32_t Machine = 0;
    struct udfrt_slot *Some = malloc(Room * sizeof *Some);
    const long Found =
        udfrt_find_in_file(Path, Names, Ours, Some, Room, &Machine);
    MUST(Found == (long)Loaded && Machine == 62);
    free(Some);
  }
  uint32_t Machine;
  MUST(udfrt_find_in_file("/proc/self/cmdline", Names, Ours, NULL, 0,
                          &Machine) == -1);
}

static void findNames(void) {
  enum { Many = 700 };
  static char Text[Many][16];
  const char *Pointers[Many];
  for (int I = 0; I < Many; ++I) {
    snprintf(Text[I], sizeof Text[I], "name%d", I * I);
    Pointers[I] = Text[I];
  }
  for (size_t Used = 0; Used <= Many; Used += 35) {
    struct names Table;
    MUST(!namesMake(&Table, Pointers, Used, Used));
    for (size_t I = 0; I < Many; ++I)
      MUST(namesFind(&Table, Text[I]) == (I < Used ? (long)I : -1));
    free(Table.buckets);
  }
}

static void resolveAll(const char *Path) {
  for (size_t I = 0; I < Count; ++I) {
    const char *Name = Names[Slots[I].symbol];
    MUST(udfrt_resolve(Path, Name, Slots[I].version));
    MUST(udfrt_resolve(Path, Name, ""));
    MUST(!udfrt_resolve(Path, Name, "NO_SUCH_VERSION"));
  }
  MUST(!udfrt_resolve(Path, "no_such_function", ""));
  MUST(!udfrt_resolve("absent.so", "expf", ""));
}

/// Puts other values into all slots, and says how many were stored.
static size_t exchange(const uint64_t *From, const uint64_t *To) {
  uint64_t *Found = malloc(Count * sizeof *Found);
  MUST(!udfrt_exchange(Slots, Count, From, To, Found));
  MUST(!memcmp(Found, From, Count * sizeof *Found));
  free(Found);
  return Count;
}

static size_t switchAll(long Rounds) {
  uint64_t Before[MostSlots], After[MostSlots], Counting[MostSlots];
  uint64_t Wrong[MostSlots], Found[MostSlots];
  size_t Exchanged = 0;
  for (size_t I = 0; I < Count; ++I) {
    const uint32_t S = Slots[I].symbol;
    // Not what a slot that was never called holds: the loader would store it.
    Before[I] = (uint64_t)(uintptr_t)Stock[S];
    After[I] = (uint64_t)(uintptr_t)Replacing[S];
    Counting[I] = udfrt_trampoline(S);
    udfrt_targets[S] = After[I];
    Wrong[I] = 1;
  }
  udfrt_read(Slots, Count, Found);
  Exchanged += exchange(Found, Before);
  pthread_t Running[Threads];
  long Made[Threads] = {0}, Sum = 0;
  for (int T = 0; T < Threads; ++T)
    MUST(!pthread_create(&Running[T], NULL, callThrough, &Made[T]));
  for (long R = 0; R < Rounds; ++R) {
    Exchanged += exchange(Before, After);
    Exchanged += exchange(After, Counting);
    // A slot that holds something else keeps its value.
    MUST(!udfrt_exchange(Slots, Count, Wrong, Before, Found));
    MUST(!memcmp(Found, Counting, Count * sizeof *Found));
    Exchanged += exchange(Counting, Before);
  }
  __atomic_store_n(&Done, 1, __ATOMIC_RELAXED);
  for (int T = 0; T < Threads; ++T) {
    MUST(!pthread_join(Running[T], NULL));
    Sum += Made[T];
  }
  for (int L = 0; L < Libraries; ++L)
    for (unsigned F = 0; F < 6; ++F)
      MUST(Calls[L](F, 2) == Stock[F % 3](2));
  // On a busy machine the threads may have called none that counts.
  Exchanged += exchange(Before, Counting);
  for (int L = 0; L < Libraries; ++L)
    for (unsigned F = 0; F < 6; ++F)
      Calls[L](F, 2);
  Exchanged += exchange(Counting, Before);
  printf("calls %ld\nexchanged %zu\n", Sum, Exchanged);
  return Exchanged;
}

//===----------------------------------------------------------------------===//
// The loop that insists, with objects that are no Python's
//===----------------------------------------------------------------------===//

static int Raises, Released, Live;

static void *fakeCall(void *Step) {
  (void)Step;
  return Raises-- > 0 ? NULL : (++Live, malloc(1));
}
static void fakeRelease(void *Object) {
  free(Object);
  ++Released;
  --Live;
}
static void fakeFetch(void **Type, void **Value, void **Trace) {
  *Type = (++Live, malloc(1));
  *Value = (++Live, malloc(1));
  *Trace = NULL;
}
static void fakeRestore(void *Type, void *Value, void *Trace) {
  MUST(Type && Value && !Trace);
  fakeRelease(Type);
  fakeRelease(Value);
}

static void insist(void) {
  const struct udfrt_python Python = {fakeCall, fakeRelease, fakeFetch,
                                      fakeRestore};
  for (int Failing = 0; Failing < 12; ++Failing) {
    Raises = Failing;
    udfrt_insist(&Python, NULL, 10);
    MUST(Live == 0);
  }
  MUST(Released);
}

int main(int Given, char **Arguments) {
  MUST(Given >= 3 && Given - 2 <= MostLibraries);
  for (int I = 2; I < Given; ++I) {
    void *Handle = dlopen(Arguments[I], RTLD_LAZY);
    if (!Handle)
      fprintf(stderr, "%s\n", dlerror());
    MUST(Handle);
    *(void **)&Calls[Libraries] = dlsym(Handle, "victim_call");
    const char *Slash = strrchr(Arguments[I], '/');
    Objects[Libraries++] = Slash ? Slash + 1 : Arguments[I];
  }
  MUST(udfrt_abi() == UDFRT_ABI && udfrt_cpu_level() >= 1);
  MUST(udfrt_mxcsr() & 0x1f80);
  MUST(udfrt_trampoline(UDFRT_TRAMPOLINES - 1) &&
       !udfrt_trampoline(UDFRT_TRAMPOLINES));
  findNames();
  findAll();
  for (int I = 2; I < Given; ++I)
    findInFile(Arguments[I], (size_t)I - 2);
  resolveAll(Arguments[2]);
  insist();
  switchAll(strtol(Arguments[1], NULL, 10));
  for (size_t I = 0; I < Ours; ++I)
    MUST(udfrt_hits[I]);
  return 0;
}
