//===- cells.c - Threads that count while sessions begin, are read and end ===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
//     cells ROUNDS
//
// Stands in for libtorch, the observer and the instrumented functions: threads
// enter operators and modules, open parallel regions, and count down as
// generated code does, while the main thread begins and ends sessions and
// reads. Prints how many calls the threads made. Its exit status is 1 if a
// record is impossible; what else is wrong, a sanitizer reports.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include "udfprof.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { Threads = 3, Operators = 300, Cells = 20000, Events = 64 };

#define MUST(Truth) ((Truth) ? (void)0 : fail(__LINE__, #Truth))

static void fail(int Line, const char *Truth) {
  fprintf(stderr, "cells.c:%d: not %s\n", Line, Truth);
  _exit(1);
}

static int Done;
static char Texts[Operators][32];
static __thread uint64_t Sequence;

static const void *currentNode(uint64_t *At, uint64_t *Thread) {
  *At = Sequence ? Sequence - 1 : 0;
  *Thread = (uint64_t)pthread_self();
  return Sequence % 3 ? NULL : &Sequence;
}
static void nodeName(char *Text, size_t Size) { snprintf(Text, Size, "Node"); }
static void callerName(char *Text, size_t Size) {
  snprintf(Text, Size, "%s", Sequence % 2 ? "aten::outside" : "");
}
static void followAll(void) {}
static uint64_t currentThread(void) { return (uint64_t)pthread_self(); }

static const struct udfprof_torch Torch = {currentNode, nodeName, callerName,
                                           followAll, currentThread};

/// What generated code does at each call.
static void call(uint32_t Slot) {
  struct udfprof_hot *Hot = &udfprof_row->hot[Slot];
  if (--Hot->left >= 0)
    return;
  struct udfprof_cell *C =
      udfprof_turn(Slot, (const void *)(uintptr_t)(4096 + Sequence % 40), 0, 0);
  if (C->due & UDFPROF_TIME)
    udfprof_time(C, 10, 16);
  if (C->due & UDFPROF_SAMPLE)
    ++C->hist[0][0][UDFPROF_BIN_OFFSET];
  ++C->specials[0].zero;
}

struct region {
  void (*Function)(void *);
  void *Data;
};
static void *enter(void *Data) {
  const struct region *R = Data;
  R->Function(R->Data);
  return NULL;
}

/// GOMP_parallel with threads whose beginning and end a sanitizer sees.
static void openRegion(void (*Function)(void *), void *Data, unsigned Count,
                       unsigned Flags) {
  (void)Flags;
  struct region R = {Function, Data};
  pthread_t Workers[4];
  for (unsigned I = 1; I < Count; ++I)
    MUST(!pthread_create(&Workers[I], NULL, enter, &R));
  Function(Data);
  for (unsigned I = 1; I < Count; ++I)
    MUST(!pthread_join(Workers[I], NULL));
}

static void inRegion(void *Data) {
  (void)Data;
  for (int I = 0; I < 40; ++I)
    call(8);
}

static void inOperator(struct udfprof_thread *T, const char *Name,
                       uint64_t Turn) {
  struct udfprof_row *Row = udfprof_row;
  const uint64_t Start = udfprof_ticks();
  T->name = Name;
  udfprof_row = T->unknown;
  T->row_length = Turn % 5 ? 0 : 1000;
  for (uint32_t I = 0; I < 50 + Turn % 700; ++I)
    call(8 + I % 3 * 5);
  if (Turn % 512 == 0)
    udfprof_parallel(inRegion, NULL, 2, 0);
  if (Turn % 9 == 0)
    udfprof_operator_udf(3, 7, Start);
  T->row_length = 0;
  if (udfprof_depth_now() && udfprof_row->is_known)
    udfprof_operator_end(T, Start);
  T->name = NULL;
  udfprof_row = Row;
}

static void *work(void *Counted) {
  long Made = 0;
  struct udfprof_thread *T = udfprof_attach();
  for (uint64_t Turn = 1; !__atomic_load_n(&Done, __ATOMIC_RELAXED); ++Turn) {
    T->module = 1 + Turn % 5;
    udfprof_made(T, ++Sequence);
    inOperator(T, Texts[Turn * 7 % Operators], Turn);
    call(23); // outside of operators
    MUST(udfprof_place() >> 2 <= 5);
    T->module = 0;
    udfprof_made(T, Sequence);
    ++Made;
  }
  *(long *)Counted = Made;
  return NULL;
}

static void readAll(void) {
  struct udfprof_cell_record *C = malloc(Cells * sizeof *C);
  struct udfprof_operator_record *O = malloc(Cells * sizeof *O);
  struct udfprof_event *E = malloc(Events * sizeof *E);
  const size_t Count = udfprof_cells(C, Cells);
  for (size_t I = 0; I < Count && I < Cells; ++I)
    MUST(C[I].calls < 1ull << 40 && C[I].elements < 1ull << 44);
  MUST(udfprof_cells(C, 1) + 64 >= 1 && udfprof_cells(NULL, 0) < Cells);
  const size_t Known = udfprof_operators(O, Cells);
  for (size_t I = 0; I < Known && I < Cells; ++I)
    MUST(O[I].calls < 1ull << 40);
  while (udfprof_events(E, Events) == Events)
    ;
  (void)udfprof_lost_events();
  for (uint32_t I = 0; I < udfprof_string_count(); I += 37)
    MUST(udfprof_string(I));
  free(C);
  free(O);
  free(E);
}

/// A child counts from zero, with all locks free.
static void forked(void) {
  const pid_t Child = fork();
  MUST(Child >= 0);
  if (!Child) {
    MUST(udfprof_cells(NULL, 0) == 0);
    udfprof_intern("in a child");
    struct udfprof_thread *T = udfprof_attach();
    inOperator(T, Texts[0], 512);
    MUST(udfprof_cells(NULL, 0) > 0);
    _exit(0);
  }
  int Status;
  MUST(waitpid(Child, &Status, 0) == Child && Status == 0);
}

int main(int Given, char **Arguments) {
  MUST(Given == 2 && udfprof_abi() == UDFPROF_ABI);
  for (int I = 0; I < Operators; ++I)
    snprintf(Texts[I], sizeof Texts[I], "aten::operator_%d", I);
  for (int I = 0; I < 2000; ++I) { // the table of strings grows
    char Text[32];
    snprintf(Text, sizeof Text, "string %d", I % 1500);
    MUST(!strcmp(udfprof_string(udfprof_intern(Text)), Text));
  }
  MUST(!*udfprof_string(UINT32_MAX));
  udfprof_gomp_parallel = openRegion;
  pthread_t Running[Threads];
  long Made[Threads] = {0}, Sum = 0;
  udfprof_set_torch(&Torch);
  for (int T = 0; T < Threads; ++T)
    MUST(!pthread_create(&Running[T], NULL, work, &Made[T]));
  const long Rounds = strtol(Arguments[1], NULL, 10);
  for (long R = 0; R < Rounds; ++R) {
    const uint32_t Depth = (uint32_t)(R % 3);
    MUST(!udfprof_ring(Depth == UDFPROF_EVENTS ? 1000 : 0));
    udfprof_set_torch(&Torch);
    udfprof_start(Depth, R % 2 ? 512 : 4);
    usleep(2000);
    readAll();
    udfprof_stop();
    readAll();
  }
  __atomic_store_n(&Done, 1, __ATOMIC_RELAXED);
  for (int T = 0; T < Threads; ++T) {
    MUST(!pthread_join(Running[T], NULL));
    Sum += Made[T];
  }
  udfprof_start(0, 512);
  forked();
  MUST(!udfprof_ring(0) && udfprof_memory());
  printf("calls %ld\n", Sum);
  return 0;
}
