//===- udfprof.c - What instrumented functions count ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// See udfprof.h. This file holds what happens once per operator call. What
// happens per call of a function is in generated code and observe.c.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include "udfprof.h"
#include "glibc.h"
#include "names.h"
#include "udfrt.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/// The time stamp counter, or AArch64's counter of the generic timer.
static inline uint64_t readTicks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  uint64_t Ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(Ticks));
  return Ticks;
#endif
}

UDFTORCH_OLD(pthread_key_create);
UDFTORCH_OLD(pthread_setspecific);

struct udfprof_row udfprof_unknown;
__thread struct udfprof_row *udfprof_row = &udfprof_unknown;
__thread struct udfprof_thread *udfprof_self;
uint32_t udfprof_depth;
void (*udfprof_gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);

static int Active;
static uint32_t Epoch = 1; // of the session; that of new memory is 0
static uint64_t SampleMask;
static const struct udfprof_torch *Torch;
static struct udfprof_thread *Threads;
static pthread_mutex_t ThreadsLock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t ThreadKey;

// Calls made while no session collects end up here, and nobody reads it. All
// threads write to it.
static struct udfprof_hot DiscardHot;
static struct udfprof_cell Discard = {.hot = &DiscardHot,
                                      .live = UINT32_MAX,
                                      .time_mask = UINT64_MAX,
                                      .sample_mask = UINT64_MAX};

static int isActive(void) { return __atomic_load_n(&Active, __ATOMIC_ACQUIRE); }

static uint32_t epochNow(void) {
  return __atomic_load_n(&Epoch, __ATOMIC_ACQUIRE);
}

static const struct udfprof_torch *torchNow(void) {
  static const struct udfprof_torch None;
  const struct udfprof_torch *T = __atomic_load_n(&Torch, __ATOMIC_ACQUIRE);
  return T ? T : &None;
}

int udfprof_abi(void) { return UDFPROF_ABI; }

uint64_t udfprof_now(void) {
  struct timespec T;
  clock_gettime(CLOCK_MONOTONIC, &T);
  return (uint64_t)T.tv_sec * 1000000000u + (uint64_t)T.tv_nsec;
}

void udfprof_clocks(uint64_t *ticks, uint64_t *monotonic_ns) {
  // The shortest reading is the one that nothing interrupted.
  uint64_t Best = UINT64_MAX;
  for (int I = 0; I < 8; ++I) {
    uint64_t Before = readTicks();
    uint64_t Now = udfprof_now();
    uint64_t After = readTicks();
    if (After - Before < Best) {
      Best = After - Before;
      *ticks = Before + Best / 2;
      *monotonic_ns = Now;
    }
  }
}

//===----------------------------------------------------------------------===//
// Cells
//===----------------------------------------------------------------------===//

// Every allocation is counted, since memory is promised to be constant.
static uint64_t Memory;

static void *allocate(size_t Size) {
  // Large ones come as untouched zero pages.
  void *P = calloc(1, Size);
  if (P)
    __atomic_fetch_add(&Memory, Size, __ATOMIC_RELAXED);
  return P;
}

static void release(void *P, size_t Size) {
  if (P)
    __atomic_fetch_sub(&Memory, Size, __ATOMIC_RELAXED);
  free(P);
}

uint64_t udfprof_memory(void) {
  return __atomic_load_n(&Memory, __ATOMIC_RELAXED);
}

/// Like allocate, but at the beginning of a cache line; never given back.
static void *allocateLines(size_t Size) {
  uintptr_t At = (uintptr_t)allocate(Size + 63);
  return At ? (void *)((At + 63) & ~(uintptr_t)63) : NULL;
}

static int isOperatorUdf(unsigned Slot) {
  return Slot >= UDFPROF_FUNCTION_SLOTS;
}

static int isDouble(unsigned Slot) {
  return !isOperatorUdf(Slot) && Slot / UDFPROF_FORMS % 2;
}

/// 0 where a cell counts elements itself.
static unsigned lanesOf(unsigned Slot) {
  static const unsigned char Lanes[] = {1, 4, 8, 16, 0};
  return isOperatorUdf(Slot) ? 0 : Lanes[Slot % UDFPROF_FORMS];
}

static uint16_t functionOf(unsigned Slot) {
  return (uint16_t)(isOperatorUdf(Slot) ? Slot - UDFPROF_FUNCTION_SLOTS +
                                              UDFPROF_FIRST_OPERATOR_UDF
                                        : Slot / (2 * UDFPROF_FORMS));
}

static uint8_t dtypeOf(unsigned Slot) {
  return isOperatorUdf(Slot) ? UDFPROF_ANY_DTYPE : (uint8_t)isDouble(Slot);
}

static uint8_t formOf(unsigned Slot) {
  return isOperatorUdf(Slot) ? UDFPROF_WHOLE_OPERATOR
                             : (uint8_t)(Slot % UDFPROF_FORMS);
}

static void clearRange(struct udfprof_range *R) {
  R->min = INT64_MAX;
  R->max = INT64_MIN;
}

/// All values are outside these bounds but zeros, which are looked at anyway.
static void clearBounds(struct udfprof_cell *C) {
  const uint64_t Low = isDouble(C->slot) ? 0x7ff0000000000000 : 0x7f800000;
  for (int Side = 0; Side < 2; ++Side) {
    C->hot->bound[Side].low = Low;
    C->hot->bound[Side].high = 0;
    clearRange(&C->range[Side]);
  }
}

/// Makes a cell of this thread count from zero, in the epoch that is now.
static void clearCell(struct udfprof_cell *C) {
  const uint32_t Now = epochNow();
  struct udfprof_hot *Hot = C->hot;
  const size_t Kept = offsetof(struct udfprof_cell, granted);
  memset((char *)C + Kept, 0, sizeof *C - Kept);
  C->due = 0;
  C->zeros_are_padding = 0;
  C->within.min = INT64_MIN;
  C->within.max = INT64_MAX;
  C->live = UINT32_MAX;
  Hot->left = 0;
  Hot->zeros = Hot->infinities = 0;
  clearBounds(C);
  for (int Side = 0; Side < 2; ++Side) {
    clearRange(&C->before[Side]);
    clearRange(&C->helped[Side]);
  }
  // One in as many elements, whatever the form: a vector call is a block.
  const uint64_t Mask = __atomic_load_n(&SampleMask, __ATOMIC_RELAXED);
  C->sample_mask = Mask;
  const uint64_t TimeMask = Mask > 2047 ? Mask : 2047;
  C->time_mask =
      udfprof_depth_now() == UDFPROF_COUNTERS ? UINT64_MAX : TimeMask;
  __atomic_store_n(&C->epoch, Now, __ATOMIC_RELEASE);
}

/// Whether a cell has been counted in since the session began.
static int isCurrent(const struct udfprof_cell *C) {
  return __atomic_load_n(&C->epoch, __ATOMIC_ACQUIRE) == epochNow();
}

/// Zeros and negative infinities that generated code let pass.
struct passed {
  uint64_t Zeros, Infinities;
};

static struct passed passedOf(const struct udfprof_hot *Hot) {
  return (struct passed){Hot->zeros, Hot->infinities};
}

static uint64_t callsOf(const struct udfprof_cell *C) {
  int64_t Left, Granted, Again;
  int Tries = 100; // another thread reads again if calls are being granted
  do {
    Left = __atomic_load_n(&C->hot->left, __ATOMIC_ACQUIRE);
    Granted = (int64_t)__atomic_load_n(&C->granted, __ATOMIC_ACQUIRE);
    Again = __atomic_load_n(&C->hot->left, __ATOMIC_RELAXED);
  } while ((Left < 0 || Again > Left) && --Tries);
  return Granted > Left ? (uint64_t)(Granted - Left) : 0;
}

static void mergeRange(struct udfprof_range *To,
                       const struct udfprof_range *From) {
  if (From->min < To->min)
    To->min = From->min;
  if (From->max > To->max)
    To->max = From->max;
}

/// Signed integers in the order of the values, of an encoding.
static int64_t keyOf(uint64_t Bits, int IsDouble) {
  if (IsDouble)
    return (int64_t)Bits ^ (((int64_t)Bits >> 63) & INT64_MAX);
  int32_t Narrow = (int32_t)Bits;
  return Narrow ^ ((Narrow >> 31) & INT32_MAX);
}

/// Takes in what generated code let pass: zeros and negative infinities, which
/// a function with an `ordinary` range turns into 1 and 0.
static void mergePassed(struct udfprof_range *R, const struct udfprof_cell *C,
                        struct passed P) {
  const int IsDouble = isDouble(C->slot);
  static const uint64_t One[] = {0x3f800000, 0x3ff0000000000000};
  static const uint64_t Lowest[] = {0xff800000, 0xfff0000000000000};
  const struct udfprof_range OfZero[] = {
      {0, 0}, {keyOf(One[IsDouble], IsDouble), keyOf(One[IsDouble], IsDouble)}};
  const struct udfprof_range OfInfinity[] = {
      {keyOf(Lowest[IsDouble], IsDouble), keyOf(Lowest[IsDouble], IsDouble)},
      {0, 0}};
  for (int Side = 0; Side < 2; ++Side) {
    if (P.Zeros)
      mergeRange(&R[Side], &OfZero[Side]);
    if (P.Infinities)
      mergeRange(&R[Side], &OfInfinity[Side]);
  }
}

/// Undoes the ordering of observe.c.
static double valueOf(int64_t Key, int IsDouble) {
  if (IsDouble) {
    int64_t Bits = Key ^ ((Key >> 63) & INT64_MAX);
    double Value;
    memcpy(&Value, &Bits, sizeof Value);
    return Value;
  }
  int32_t Bits = (int32_t)Key;
  Bits ^= (Bits >> 31) & INT32_MAX;
  // Done by hand: a conversion instruction under DAZ would flush a subnormal.
  uint32_t Magnitude = (uint32_t)Bits & 0x7fffffff;
  uint64_t Wide;
  if (Magnitude >= 0x7f800000)
    Wide = 0x7ff0000000000000;
  else if (Magnitude >= 0x00800000)
    Wide = ((uint64_t)Magnitude << 29) + ((uint64_t)(1023 - 127) << 52);
  else if (Magnitude) {
    unsigned Top = 31u - (unsigned)__builtin_clz(Magnitude); // below bit 23
    Wide = ((uint64_t)(Top - 149 + 1023) << 52) |
           (((uint64_t)Magnitude << (52 - Top)) & 0xfffffffffffff);
  } else
    Wide = 0;
  if (Bits < 0)
    Wide |= 1ull << 63;
  double Value;
  memcpy(&Value, &Wide, sizeof Value);
  return Value;
}

static double minOf(const struct udfprof_range *R, int IsDouble) {
  return R->min > R->max ? (double)INFINITY : valueOf(R->min, IsDouble);
}

static double maxOf(const struct udfprof_range *R, int IsDouble) {
  return R->min > R->max ? -(double)INFINITY : valueOf(R->max, IsDouble);
}

static int64_t orderOf(double Value) {
  int64_t Bits;
  memcpy(&Bits, &Value, sizeof Bits);
  return Bits ^ ((Bits >> 63) & INT64_MAX);
}

/// Compares encodings: under DAZ a comparison takes subnormals for zeros.
static void widen(double *Min, double *Max, double ThatMin, double ThatMax) {
  if (orderOf(ThatMin) < orderOf(*Min))
    *Min = ThatMin;
  if (orderOf(ThatMax) > orderOf(*Max))
    *Max = ThatMax;
}

static uint64_t elementsOf(const struct udfprof_cell *C) {
  unsigned Lanes = lanesOf(C->slot);
  if (!Lanes)
    return C->elements;
  const uint64_t All = callsOf(C) * Lanes;
  return All > C->padding ? All - C->padding : 0;
}

uint64_t udfprof_ticks(void) { return readTicks(); }

void udfprof_time(struct udfprof_cell *cell, uint64_t ticks,
                  uint64_t elements) {
  if (!udfprof_depth_now()) // a cell's first call is timed at every depth
    return;
  cell->ticks += ticks;
  cell->timed_elements += elements;
}

/// Tells a cell how long the rows of the kernel that begins are, 0 for none.
static void setRows(struct udfprof_cell *C, int64_t Length) {
  const unsigned Lanes = lanesOf(C->slot);
  const uint64_t Calls = callsOf(C);
  C->row_calls = C->zeros_are_padding = 0;
  if (Lanes < 2 || !Length)
    return;
  if (functionOf(C->slot) == UDFPROF_LOG) {
    // The values are sums of exponentials, one of which is 1: none is zero.
    C->zeros_are_padding = 1;
    return;
  }
  if (Length % Lanes == 0 || Length >= INT32_MAX)
    return;
  C->row_calls = (uint32_t)((Length + Lanes - 1) / Lanes);
  C->row_rest = (uint32_t)(Length % Lanes);
  C->row_next = Calls + C->row_calls - 1;
  if (C->granted > C->row_next) { // the end of a row is looked at
    C->hot->left -= (int64_t)(C->granted - C->row_next);
    C->granted = C->row_next;
  }
}

static struct udfprof_cell *cellIn(struct udfprof_row *Row, unsigned Slot,
                                   int64_t RowLength) {
  struct udfprof_hot *Hot = &Row->hot[Slot];
  struct udfprof_cell *C = Hot->cell;
  if (C) {
    if (!isCurrent(C)) {
      clearCell(C);
      setRows(C, RowLength);
    }
    return C;
  }
  C = allocateLines(sizeof *C);
  if (!C)
    return &Discard;
  C->slot = (uint16_t)Slot;
  C->hot = Hot;
  C->live = UINT32_MAX;
  clearCell(C);
  setRows(C, RowLength);
  Row->used[Row->used_count] = (uint16_t)Slot;
  __atomic_store_n(&Hot->cell, C, __ATOMIC_RELEASE);
  __atomic_store_n(&Row->used_count, Row->used_count + 1, __ATOMIC_RELEASE);
  return C;
}

//===----------------------------------------------------------------------===//
// Strings
//===----------------------------------------------------------------------===//

static pthread_mutex_t StringsLock = PTHREAD_MUTEX_INITIALIZER;
static char **Strings;
static uint32_t StringCount, StringRoom;
static struct names StringTable;

static int growStrings(void) {
  uint32_t Room = StringRoom ? 2 * StringRoom : 256;
  char **More = realloc(Strings, Room * sizeof *More);
  if (!More)
    return -1;
  Strings = More;
  const struct names Old = StringTable;
  StringTable.text = (const char *const *)Strings; // realloc may have moved it
  if (namesMake(&StringTable, (const char *const *)Strings, StringCount, Room))
    return -1;
  free(Old.buckets);
  StringRoom = Room;
  return 0;
}

static uint32_t internLocked(const char *Text) {
  const long Found = namesFind(&StringTable, Text);
  if (Found >= 0)
    return (uint32_t)Found;
  if (StringCount == StringRoom && growStrings())
    return 0;
  char *Copy = strdup(Text);
  if (!Copy)
    return 0;
  Strings[StringCount] = Copy;
  namesAdd(&StringTable, StringCount);
  return StringCount++;
}

uint32_t udfprof_intern(const char *text) {
  pthread_mutex_lock(&StringsLock);
  if (!StringCount)
    internLocked(""); // id 0
  uint32_t Id = internLocked(text);
  pthread_mutex_unlock(&StringsLock);
  return Id;
}

const char *udfprof_string(uint32_t id) {
  pthread_mutex_lock(&StringsLock);
  const char *Text = id < StringCount ? Strings[id] : "";
  pthread_mutex_unlock(&StringsLock);
  return Text;
}

uint32_t udfprof_string_count(void) {
  pthread_mutex_lock(&StringsLock);
  uint32_t Count = StringCount;
  pthread_mutex_unlock(&StringsLock);
  return Count;
}

//===----------------------------------------------------------------------===//
// Threads
//===----------------------------------------------------------------------===//

static void detach(void *Self) {
  // The next thread goes on with the same cells.
  struct udfprof_thread *T = Self;
  udfprof_self = NULL;
  udfprof_row = &udfprof_unknown;
  __atomic_store_n(&T->alive, 0, __ATOMIC_RELEASE);
}

static void setTorchId(struct udfprof_thread *T) {
  uint64_t (*Thread)(void) = torchNow()->thread;
  __atomic_store_n(&T->torch_id, Thread ? Thread() : 0, __ATOMIC_RELAXED);
}

struct udfprof_thread *udfprof_attach(void) {
  struct udfprof_thread *T = udfprof_self;
  if (T)
    return T;
  pthread_mutex_lock(&ThreadsLock);
  for (T = Threads; T && __atomic_load_n(&T->alive, __ATOMIC_ACQUIRE);
       T = T->next)
    ;
  if (!T) {
    T = allocate(sizeof *T);
    if (T)
      T->unknown = allocateLines(sizeof *T->unknown);
    if (!T || !T->unknown)
      abort(); // like any allocation of the surrounding C++
    T->next = Threads;
    __atomic_store_n(&Threads, T, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&T->alive, 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&ThreadsLock);
  T->module = T->optimizer = T->depth = 0;
  T->row_length = 0;
  // Another thread's numbers.
  __atomic_store_n(&T->made_count, 0, __ATOMIC_RELEASE);
  T->node = T->call = NULL;
  T->name = NULL;
  T->region = NULL;
  T->id = (uint32_t)syscall(SYS_gettid);
  setTorchId(T);
  pthread_setspecific(ThreadKey, T);
  udfprof_self = T;
  udfprof_row = T->unknown;
  return T;
}

void udfprof_made(struct udfprof_thread *self, uint64_t sequence) {
  if (!self->made) {
    self->made = allocate(UDFPROF_MADE * sizeof *self->made);
    if (!self->made)
      return;
  }
  // Autograd's thread may be reading these.
  struct udfprof_made *Last =
      &self->made[(self->made_count - 1) & UDFPROF_MADE_MASK];
  if (self->made_count && Last->sequence >= sequence) {
    __atomic_store_n(&Last->module, self->module, __ATOMIC_RELAXED);
    return;
  }
  if (!self->made_count)
    setTorchId(self);
  struct udfprof_made *New = &self->made[self->made_count & UDFPROF_MADE_MASK];
  __atomic_store_n(&New->sequence, sequence, __ATOMIC_RELAXED);
  __atomic_store_n(&New->module, self->module, __ATOMIC_RELAXED);
  __atomic_store_n(&self->made_count, self->made_count + 1, __ATOMIC_RELEASE);
}

void udfprof_set_torch(const struct udfprof_torch *torch) {
  __atomic_store_n(&Torch, torch, __ATOMIC_RELEASE);
}

//===----------------------------------------------------------------------===//
// Contexts
//===----------------------------------------------------------------------===//

/// A parallel region: what its workers take over from the caller.
struct udfprof_region {
  void (*Function)(void *);
  void *Data;
  struct udfprof_thread *Master;
  const char *Name;
  uint32_t Module;
  uint8_t Stage;
  int64_t RowLength;
  int Touched;
  struct Help *Helped; // at depth events
};

/// The row of a worker that used functions within a region.
struct Help {
  struct udfprof_row *Row;
  struct Help *Next;
};

static uint64_t sequenceAt(const struct udfprof_thread *T, uint64_t At) {
  return __atomic_load_n(&T->made[At & UDFPROF_MADE_MASK].sequence,
                         __ATOMIC_RELAXED);
}

/// The module that was being called when a node was made.
static uint32_t moduleOfNode(uint64_t Sequence, uint64_t Thread) {
  for (struct udfprof_thread *T = __atomic_load_n(&Threads, __ATOMIC_ACQUIRE);
       T; T = T->next) {
    uint64_t Count = __atomic_load_n(&T->made_count, __ATOMIC_ACQUIRE);
    if (!Count || __atomic_load_n(&T->torch_id, __ATOMIC_RELAXED) != Thread)
      continue;
    // Finds the last entry that is not behind the node; entries are in order.
    // It is near the end, so the search strides back from there: halving the
    // whole range would touch other cache lines.
    const uint64_t First = Count > UDFPROF_MADE ? Count - UDFPROF_MADE : 0;
    uint64_t Low = Count, High = Count, Step = 1;
    do {
      High = Low;
      Low = High - First > Step ? High - Step : First;
      Step *= 2;
    } while (Low > First && sequenceAt(T, Low) > Sequence);
    if (sequenceAt(T, Low) > Sequence)
      return 0;
    while (High - Low > 1) {
      uint64_t Middle = Low + (High - Low) / 2;
      if (sequenceAt(T, Middle) > Sequence)
        High = Middle;
      else
        Low = Middle;
    }
    return __atomic_load_n(&T->made[Low & UDFPROF_MADE_MASK].module,
                           __ATOMIC_RELAXED);
  }
  return 0;
}

static uint32_t operatorId(struct udfprof_thread *T, const char *Name) {
  static const char Node[] = "autograd::engine::evaluate_function: ";
  if (!strncmp(Name, Node, sizeof Node - 1))
    Name += sizeof Node - 1;
  uintptr_t Key = (uintptr_t)Name;
  unsigned Bucket = (unsigned)((Key >> 4) ^ (Key >> 12)) & 255;
  // An address may come back with another text.
  if (!T->names[Bucket].text || strcmp(T->names[Bucket].text, Name)) {
    T->names[Bucket].id = udfprof_intern(Name);
    T->names[Bucket].text = udfprof_string(T->names[Bucket].id);
  }
  return T->names[Bucket].id;
}

/// Returns the operator outside the observer's list whose code called from \p
/// Caller, or 0 if none did.
static uint32_t callerId(struct udfprof_thread *T, const void *Caller) {
  enum { COUNT = sizeof T->callers / sizeof *T->callers, PROBES = 8 };
  const unsigned First =
      (unsigned)((uintptr_t)Caller ^ ((uintptr_t)Caller >> 8));
  unsigned B = First % COUNT;
  for (unsigned I = 0; I < PROBES && T->callers[B].caller != Caller; ++I)
    B = (First + I) % COUNT;
  if (T->callers[B].caller != Caller) {
    // Takes an empty place among these, or else forgets one.
    for (unsigned I = 0; I < PROBES && T->callers[B].caller; ++I)
      B = (First + I) % COUNT;
    char Name[256] = "";
    if (torchNow()->caller_name)
      torchNow()->caller_name(Name, sizeof Name);
    T->callers[B].id = udfprof_intern(Name);
    T->callers[B].calls = 0;
    T->callers[B].caller = Caller;
  }
  if (T->callers[B].id && ++T->callers[B].calls == UDFPROF_PATIENCE)
    torchNow()->follow_all();
  return T->callers[B].id;
}

static uint32_t nodeId(struct udfprof_thread *T, const void *Node,
                       uint64_t Sequence) {
  if (T->last_node.node != Node || T->last_node.sequence != Sequence) {
    char Name[256] = "";
    torchNow()->node_name(Name, sizeof Name);
    T->last_node.id = udfprof_intern(Name);
    T->last_node.sequence = Sequence;
    T->last_node.node = Node;
  }
  return T->last_node.id;
}

static uint32_t hashContext(uint32_t Operator, uint32_t Module, uint8_t Stage) {
  uint32_t H = Operator * 2654435761u ^ Module * 2246822519u ^ Stage * 97u;
  return H ^ (H >> 15);
}

static void putRow(struct udfprof_row **Table, uint32_t Size,
                   struct udfprof_row *Row) {
  uint32_t B =
      hashContext(Row->operator_id, Row->module_id, Row->stage) & (Size - 1);
  while (Table[B])
    B = (B + 1) & (Size - 1);
  Table[B] = Row;
}

/// Makes a row of this thread count calls from zero if it has not since the
/// session began.
static struct udfprof_row *renewed(struct udfprof_row *R) {
  const uint32_t Now = epochNow();
  if (R->epoch != Now) {
    R->calls = R->ticks = 0;
    __atomic_store_n(&R->epoch, Now, __ATOMIC_RELEASE);
  }
  return R;
}

static struct udfprof_row *findRow(struct udfprof_thread *T, uint32_t Operator,
                                   uint32_t Module, uint8_t Stage) {
  if (T->table_size)
    for (uint32_t B =
             hashContext(Operator, Module, Stage) & (T->table_size - 1);
         T->table[B]; B = (B + 1) & (T->table_size - 1)) {
      struct udfprof_row *R = T->table[B];
      if (R->operator_id == Operator && R->module_id == Module &&
          R->stage == Stage)
        return renewed(R);
    }
  if (2 * T->table_used >= T->table_size) {
    uint32_t Size = T->table_size ? 2 * T->table_size : 256;
    struct udfprof_row **Table = allocate(Size * sizeof *Table);
    if (!Table)
      return NULL;
    for (struct udfprof_row *R = T->rows; R; R = R->next)
      putRow(Table, Size, R);
    release(T->table, T->table_size * sizeof *Table);
    T->table = Table;
    T->table_size = Size;
  }
  struct udfprof_row *R = allocateLines(sizeof *R);
  if (!R)
    return NULL;
  R->is_known = 1;
  R->operator_id = Operator;
  R->module_id = Module;
  R->stage = Stage;
  R->epoch = epochNow();
  R->next = T->rows;
  putRow(T->table, T->table_size, R);
  ++T->table_used;
  __atomic_store_n(&T->rows, R, __ATOMIC_RELEASE);
  return R;
}

/// Where a thread is: in which module and stage, and which node it runs.
struct place {
  uint32_t Module;
  uint8_t Stage;
  const void *Node;
  uint64_t Sequence;
};

static struct place placeOf(const struct udfprof_thread *T) {
  struct place P = {.Module = T->module, .Stage = UDFPROF_FORWARD};
  uint64_t Thread;
  const struct udfprof_torch *Asked = torchNow();
  P.Node = Asked->node ? Asked->node(&P.Sequence, &Thread) : NULL;
  if (P.Node) {
    P.Stage = UDFPROF_BACKWARD;
    // Unless the node itself called the module, as a recomputation does.
    if (P.Node != T->node || !T->module)
      P.Module = moduleOfNode(P.Sequence, Thread);
  }
  if (T->optimizer)
    P.Stage = UDFPROF_OPTIMIZER;
  return P;
}

uint64_t udfprof_place(void) {
  const struct place P = placeOf(udfprof_attach());
  return (uint64_t)P.Module << 2 | P.Stage;
}

// Sights. Operators end on many threads, so a lock guards what follows. It is
// taken only when there is a new mark.
static pthread_mutex_t SightsLock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t Seen[UDFRT_TRAMPOLINES];
static struct udfprof_sight Sights[UDFRT_TRAMPOLINES];
uint32_t udfprof_sees;

void udfprof_sighting(int on) {
  pthread_mutex_lock(&SightsLock);
  memset(Seen, 0, sizeof Seen);
  memset(Sights, 0, sizeof Sights);
  __atomic_store_n(&udfprof_sees, on != 0, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&SightsLock);
}

int udfprof_sight(size_t index, struct udfprof_sight *out) {
  pthread_mutex_lock(&SightsLock);
  const int Has = index < UDFRT_TRAMPOLINES && Seen[index];
  if (Has)
    *out = Sights[index];
  pthread_mutex_unlock(&SightsLock);
  return Has;
}

int udfprof_unseen(void) { return memcmp(udfrt_marks, Seen, sizeof Seen) != 0; }

void udfprof_see(const char *name, const char *line) {
  if (!udfprof_unseen())
    return;
  const uint32_t Operator = name ? udfprof_intern(name) : 0;
  const uint32_t Line = line ? udfprof_intern(line) : 0;
  const uint64_t Place = udfprof_place();
  pthread_mutex_lock(&SightsLock);
  for (size_t I = 0; I < UDFRT_TRAMPOLINES; ++I)
    if (udfrt_marks[I] && !Seen[I]) {
      Seen[I] = 1;
      Sights[I] = (struct udfprof_sight){Operator, Line, Place};
    }
  pthread_mutex_unlock(&SightsLock);
}

// Lines of first values. A lock guards them: a cell makes at most one value of
// each kind.
enum { FirstsRoom = 256 };
static pthread_mutex_t FirstsLock = PTHREAD_MUTEX_INITIALIZER;
static struct udfprof_first_line Firsts[FirstsRoom];
/// The thread whose operator made the value, until its line is known.
static const struct udfprof_thread *FirstsBy[FirstsRoom];
static unsigned FirstsCount;
uint32_t udfprof_waiting;

uint64_t udfprof_first(void) {
  const uint64_t Now = udfprof_now();
  const struct udfprof_thread *T = udfprof_self;
  if (T && T->region && !T->name)
    T = T->region->Master;
  if (!T || !T->name)
    return Now;
  pthread_mutex_lock(&FirstsLock);
  if (FirstsCount < FirstsRoom) {
    Firsts[FirstsCount] = (struct udfprof_first_line){.ns = Now};
    FirstsBy[FirstsCount++] = T;
    __atomic_fetch_add(&udfprof_waiting, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&FirstsLock);
  return Now;
}

void udfprof_line(const char *line) {
  const struct udfprof_thread *T = udfprof_self;
  const uint32_t Line = line ? udfprof_intern(line) : 0;
  pthread_mutex_lock(&FirstsLock);
  for (unsigned I = 0; I < FirstsCount; ++I)
    if (FirstsBy[I] == T) {
      Firsts[I].line_id = Line;
      FirstsBy[I] = NULL;
      __atomic_fetch_sub(&udfprof_waiting, 1, __ATOMIC_RELAXED);
    }
  pthread_mutex_unlock(&FirstsLock);
}

size_t udfprof_first_lines(struct udfprof_first_line *out, size_t capacity) {
  size_t Count = 0;
  pthread_mutex_lock(&FirstsLock);
  for (unsigned I = 0; I < FirstsCount && Count < capacity; ++I)
    if (Firsts[I].line_id)
      out[Count++] = Firsts[I];
  pthread_mutex_unlock(&FirstsLock);
  return Count;
}

static void forgetFirsts(void) {
  pthread_mutex_lock(&FirstsLock);
  FirstsCount = 0;
  __atomic_store_n(&udfprof_waiting, 0, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&FirstsLock);
}

static struct udfprof_row *rowOf(struct udfprof_thread *T, const void *Caller) {
  const struct udfprof_region *Region = T->region;
  if (Region && !T->name)
    return findRow(T, operatorId(T, Region->Name), Region->Module,
                   Region->Stage);
  const struct place P = placeOf(T);
  if (T->name)
    return findRow(T, operatorId(T, T->name), P.Module, P.Stage);
  uint32_t Operator = callerId(T, Caller);
  if (!Operator && P.Node)
    Operator = nodeId(T, P.Node, P.Sequence);
  struct udfprof_row *Row =
      findRow(T, Operator, P.Module, Operator ? P.Stage : UDFPROF_OTHER);
  if (Row && Operator && !Row->calls)
    Row->calls = 1;
  return Row;
}

struct udfprof_cell *udfprof_cell(uint32_t slot, const void *caller) {
  if (!isActive())
    return &Discard;
  struct udfprof_thread *T = udfprof_attach();
  struct udfprof_row *Row = udfprof_row;
  if (!Row->is_known) {
    Row->hot[slot].left = 0;
    Row = rowOf(T, caller);
    if (!Row)
      return &Discard;
    if (T->row_length || Row->had_rows) {
      Row->had_rows = T->row_length != 0;
      for (unsigned I = 0; I < Row->used_count; ++I)
        setRows(cellIn(Row, Row->used[I], 0), T->row_length);
    }
    // Outside an operator nothing tells when the context changes.
    if (T->name || T->region)
      udfprof_row = Row;
    if (T->name)
      ++Row->calls;
  }
  return cellIn(Row, slot, T->row_length);
}

struct udfprof_cell *udfprof_turn(uint32_t slot, const void *caller,
                                  uint64_t low, uint64_t high) {
  struct udfprof_cell *C = udfprof_row->hot[slot].cell;
  if (!C || !isCurrent(C)) {
    C = udfprof_cell(slot, caller);
    if (C == &Discard)
      return C;
    --C->hot->left;
  }
  C->due = 0;
  if (C->hot->left >= 0)
    return C;
  const uint64_t Before = C->granted;
  if (!Before) { // another session may watch another library
    const int All = !low && !high;
    C->within.min = All ? INT64_MIN : keyOf(low, isDouble(slot));
    C->within.max = All ? INT64_MAX : keyOf(high, isDouble(slot));
  }
  if (!(Before & C->sample_mask))
    C->due |= UDFPROF_SAMPLE;
  if (!(Before & C->time_mask))
    C->due |= UDFPROF_TIME;
  uint64_t Next = (Before | C->sample_mask) + 1;
  if (C->row_calls) {
    if (Before == C->row_next) {
      C->live = (1u << C->row_rest) - 1;
      C->padding += lanesOf(slot) - C->row_rest;
      C->row_next += C->row_calls;
    }
    if (C->row_next < Next)
      Next = C->row_next;
  }
  __atomic_store_n(&C->granted, Next, __ATOMIC_RELEASE);
  __atomic_store_n(&C->hot->left, (int64_t)(Next - Before - 1),
                   __ATOMIC_RELEASE);
  return C;
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

static pthread_mutex_t EventsLock = PTHREAD_MUTEX_INITIALIZER;
static struct udfprof_event *Events;
static size_t EventRoom, EventFirst, EventCount;
static uint64_t LostEvents;

int udfprof_ring(size_t capacity) {
  struct udfprof_event *New = NULL;
  if (capacity && !(New = allocate(capacity * sizeof *New)))
    return ENOMEM;
  pthread_mutex_lock(&EventsLock);
  release(Events, EventRoom * sizeof *New);
  Events = New;
  EventRoom = capacity;
  EventFirst = EventCount = 0;
  LostEvents = 0;
  pthread_mutex_unlock(&EventsLock);
  return 0;
}

size_t udfprof_events(struct udfprof_event *out, size_t capacity) {
  pthread_mutex_lock(&EventsLock);
  size_t Count = EventCount < capacity ? EventCount : capacity;
  for (size_t I = 0; I < Count; ++I)
    out[I] = Events[(EventFirst + I) % EventRoom];
  if (Count) {
    EventFirst = (EventFirst + Count) % EventRoom;
    EventCount -= Count;
  }
  pthread_mutex_unlock(&EventsLock);
  return Count;
}

uint64_t udfprof_lost_events(void) {
  pthread_mutex_lock(&EventsLock);
  uint64_t Lost = LostEvents;
  pthread_mutex_unlock(&EventsLock);
  return Lost;
}

/// Returns the elements since the last event and leaves none for the next one.
static uint64_t takeElements(struct udfprof_cell *C) {
  uint64_t All = elementsOf(C), New = All - C->in_events;
  C->in_events = All;
  return New;
}

static uint32_t takeRange(struct udfprof_cell *C, struct udfprof_range *To) {
  struct passed P = passedOf(C->hot);
  P.Zeros -= C->passed_in_events[0];
  P.Infinities -= C->passed_in_events[1];
  C->passed_in_events[0] += P.Zeros;
  C->passed_in_events[1] += P.Infinities;
  mergePassed(To, C, P);
  for (int Side = 0; Side < 2; ++Side) {
    mergeRange(&To[Side], &C->range[Side]);
    mergeRange(&C->before[Side], &C->range[Side]);
  }
  clearBounds(C);
  const uint32_t Flags = C->flags | (P.Zeros ? UDFPROF_ZERO : 0) |
                         (P.Infinities ? UDFPROF_INF | UDFPROF_ZERO << 4 : 0);
  C->flags = 0;
  return Flags;
}

static void putEvent(const struct udfprof_event *E) {
  // One function may have been used in several forms (vectors and a tail).
  pthread_mutex_lock(&EventsLock);
  struct udfprof_event *Last =
      EventCount ? &Events[(EventFirst + EventCount - 1) % EventRoom] : NULL;
  if (Last && Last->start == E->start && Last->thread == E->thread &&
      Last->function == E->function && Last->dtype == E->dtype) {
    Last->elements += E->elements;
    widen(&Last->in_min, &Last->in_max, E->in_min, E->in_max);
    widen(&Last->out_min, &Last->out_max, E->out_min, E->out_max);
    Last->flags |= E->flags;
  } else if (EventCount < EventRoom) {
    Events[(EventFirst + EventCount++) % EventRoom] = *E;
  } else {
    ++LostEvents;
  }
  pthread_mutex_unlock(&EventsLock);
}

static void writeEvents(struct udfprof_thread *T, struct udfprof_row *Row,
                        uint64_t Start, uint64_t End) {
  for (unsigned I = 0; I < Row->used_count; ++I) {
    struct udfprof_cell *C = Row->hot[Row->used[I]].cell;
    if (!isCurrent(C))
      continue;
    uint64_t Elements = takeElements(C) + C->helped_elements;
    if (!Elements)
      continue;
    int IsDouble = isDouble(C->slot);
    struct udfprof_range Both[2] = {C->helped[0], C->helped[1]};
    const uint32_t Flags = takeRange(C, Both);
    struct udfprof_event E = {.start = Start,
                              .end = End,
                              .thread = T->id,
                              .function = functionOf(C->slot),
                              .dtype = dtypeOf(C->slot),
                              .stage = Row->stage,
                              .operator_id = Row->operator_id,
                              .module_id = Row->module_id,
                              .elements = Elements,
                              .in_min = minOf(&Both[0], IsDouble),
                              .in_max = maxOf(&Both[0], IsDouble),
                              .out_min = minOf(&Both[1], IsDouble),
                              .out_max = maxOf(&Both[1], IsDouble),
                              .flags = Flags | C->helped_flags};
    C->helped_flags = 0;
    C->helped_elements = 0;
    clearRange(&C->helped[0]);
    clearRange(&C->helped[1]);
    putEvent(&E);
  }
}

void udfprof_operator_udf(uint32_t number, uint64_t elements, uint64_t start) {
  if (!isActive() || number >= UDFPROF_OPERATOR_UDFS)
    return;
  uint64_t Now = readTicks();
  struct udfprof_cell *C = udfprof_cell(UDFPROF_FUNCTION_SLOTS + number,
                                        __builtin_return_address(0));
  if (C == &Discard)
    return;
  ++C->granted;
  C->elements += elements;
  udfprof_time(C, Now - start, elements);
  if (udfprof_depth_now() != UDFPROF_EVENTS)
    return;
  // Its own times instead of the operator's, and also when it had no elements.
  C->in_events = C->elements;
  struct udfprof_thread *T = udfprof_attach();
  const struct udfprof_row *Row = udfprof_row;
  struct udfprof_event E = {.start = start,
                            .end = Now,
                            .thread = T->id,
                            .function = functionOf(C->slot),
                            .dtype = UDFPROF_ANY_DTYPE,
                            .stage = Row->stage,
                            .operator_id = Row->operator_id,
                            .module_id = Row->module_id,
                            .elements = elements,
                            .in_min = (double)INFINITY,
                            .in_max = -(double)INFINITY,
                            .out_min = (double)INFINITY,
                            .out_max = -(double)INFINITY};
  putEvent(&E);
}

void udfprof_operator_end(struct udfprof_thread *self, uint64_t start) {
  if (!isActive())
    return;
  uint64_t Now = readTicks();
  struct udfprof_row *Row = udfprof_row;
  Row->ticks += Now - start;
  if (udfprof_depth_now() == UDFPROF_EVENTS)
    writeEvents(self, Row, start, Now);
}

void udfprof_within(const char *name, void (*function)(void *), void *data) {
  struct udfprof_thread *T = udfprof_attach();
  const char *Outer = T->name;
  struct udfprof_row *Row = udfprof_row;
  T->name = name;
  udfprof_row = T->unknown;
  const uint64_t Start = readTicks();
  function(data);
  if (udfprof_depth_now() && udfprof_row->is_known)
    udfprof_operator_end(T, Start);
  T->name = Outer;
  udfprof_row = Row;
}

//===----------------------------------------------------------------------===//
// Parallel regions
//===----------------------------------------------------------------------===//

static void runRegion(void *Data) {
  struct udfprof_region *R = Data;
  struct udfprof_thread *T = udfprof_attach();
  if (T == R->Master) {
    R->Function(R->Data);
    return;
  }
  struct udfprof_region *Outer = T->region;
  struct udfprof_row *Row = udfprof_row;
  const char *Name = T->name;
  T->region = R;
  T->name = NULL;
  const int64_t Length = T->row_length;
  T->row_length = R->RowLength;
  udfprof_row = T->unknown;
  R->Function(R->Data);
  T->row_length = Length;
  if (udfprof_row->is_known) {
    __atomic_store_n(&R->Touched, 1, __ATOMIC_RELAXED);
    if (udfprof_depth_now() == UDFPROF_EVENTS) {
      struct Help *H = allocate(sizeof *H);
      if (H) {
        H->Row = udfprof_row;
        H->Next = __atomic_load_n(&R->Helped, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&R->Helped, &H->Next, H, 0,
                                            __ATOMIC_RELEASE, __ATOMIC_RELAXED))
          ;
      }
    }
  }
  udfprof_row = Row;
  T->name = Name;
  T->region = Outer;
}

/// Adds what the workers did to the event of the operator they worked for.
/// They have left the region: nobody else touches their rows.
static void takeHelp(struct udfprof_row *Mine, struct Help *H) {
  while (H) {
    for (unsigned I = 0; I < H->Row->used_count; ++I) {
      struct udfprof_cell *C = H->Row->hot[H->Row->used[I]].cell;
      if (!isCurrent(C))
        continue;
      uint64_t Elements = takeElements(C);
      if (!Elements)
        continue;
      struct udfprof_cell *To = cellIn(Mine, C->slot, 0);
      To->helped_elements += Elements;
      To->helped_flags |= takeRange(C, To->helped);
    }
    struct Help *Next = H->Next;
    release(H, sizeof *H);
    H = Next;
  }
}

void udfprof_parallel(void (*function)(void *), void *data, unsigned threads,
                      unsigned flags) {
  struct udfprof_thread *T = udfprof_attach();
  if (!isActive() || !(T->name || T->region)) {
    udfprof_gomp_parallel(function, data, threads, flags);
    return;
  }
  struct udfprof_region R = {.Function = function,
                             .Data = data,
                             .Master = T,
                             .RowLength = T->row_length};
  if (T->name) {
    const struct place P = placeOf(T); // the node is known on this thread only
    R.Name = T->name;
    R.Module = P.Module;
    R.Stage = P.Stage;
  } else {
    R.Name = T->region->Name;
    R.Module = T->region->Module;
    R.Stage = T->region->Stage;
  }
  udfprof_gomp_parallel(runRegion, &R, threads, flags);
  if (!R.Touched)
    return;
  if (!udfprof_row->is_known) {
    struct udfprof_row *Row = rowOf(T, NULL);
    if (!Row)
      return;
    udfprof_row = Row;
    if (T->name)
      ++Row->calls;
  }
  takeHelp(udfprof_row, R.Helped);
}

//===----------------------------------------------------------------------===//
// Sessions
//===----------------------------------------------------------------------===//

/// Begins an epoch: everything counted so far counts for nothing.
static void clearAll(void) {
  forgetFirsts();
  __atomic_store_n(&Epoch, Epoch + 1, __ATOMIC_RELEASE);
  for (struct udfprof_thread *T = __atomic_load_n(&Threads, __ATOMIC_ACQUIRE);
       T; T = T->next)
    for (struct udfprof_row *R = __atomic_load_n(&T->rows, __ATOMIC_ACQUIRE); R;
         R = R->next) {
      // The next call goes to udfprof_turn. A thread that is counting down at
      // this moment may overwrite the word; it gets there when it has used up
      // the calls that it was granted.
      unsigned Count = __atomic_load_n(&R->used_count, __ATOMIC_ACQUIRE);
      for (unsigned I = 0; I < Count; ++I)
        __atomic_store_n(&R->hot[R->used[I]].left, 0, __ATOMIC_RELAXED);
    }
}

void udfprof_start(uint32_t depth, uint32_t stride) {
  __atomic_store_n(&udfprof_depth, depth, __ATOMIC_RELAXED);
  __atomic_store_n(&SampleMask, stride - 1, __ATOMIC_RELAXED);
  clearAll();
  pthread_mutex_lock(&EventsLock);
  EventFirst = EventCount = 0;
  LostEvents = 0;
  pthread_mutex_unlock(&EventsLock);
  __atomic_store_n(&Active, 1, __ATOMIC_RELEASE);
}

void udfprof_stop(void) { __atomic_store_n(&Active, 0, __ATOMIC_RELEASE); }

static void readCell(const struct udfprof_row *Row,
                     const struct udfprof_cell *C,
                     struct udfprof_cell_record *Out) {
  int IsDouble = isDouble(C->slot);
  struct udfprof_range R[2] = {C->range[0], C->range[1]};
  mergeRange(&R[0], &C->before[0]);
  mergeRange(&R[1], &C->before[1]);
  const struct passed P = passedOf(C->hot);
  mergePassed(R, C, P);
  memset(Out, 0, sizeof *Out);
  Out->function = functionOf(C->slot);
  Out->dtype = dtypeOf(C->slot);
  Out->form = formOf(C->slot);
  Out->stage = Row->stage;
  Out->operator_id = Row->operator_id;
  Out->module_id = Row->module_id;
  Out->calls = callsOf(C);
  Out->elements = elementsOf(C);
  Out->in_min = minOf(&R[0], IsDouble);
  Out->in_max = maxOf(&R[0], IsDouble);
  Out->out_min = minOf(&R[1], IsDouble);
  Out->out_max = maxOf(&R[1], IsDouble);
  Out->in = C->specials[0];
  Out->out = C->specials[1];
  Out->in.zero += P.Zeros;
  Out->in.neg_inf += P.Infinities;
  Out->out.zero += P.Infinities;
  Out->made_nan_ns = C->made_nan_ns;
  Out->made_inf_ns = C->made_inf_ns;
  Out->made_subnormal_ns = C->made_subnormal_ns;
  Out->timed_elements = C->timed_elements;
  if (C->timed_elements)
    Out->time =
        (double)C->ticks / (double)C->timed_elements * (double)Out->elements;
  Out->hist_elements = C->hist_elements;
  memcpy(Out->hist_in, C->hist[0], sizeof Out->hist_in);
  memcpy(Out->hist_out, C->hist[1], sizeof Out->hist_out);
}

size_t udfprof_cells(struct udfprof_cell_record *out, size_t capacity) {
  size_t Count = 0;
  for (struct udfprof_thread *T = __atomic_load_n(&Threads, __ATOMIC_ACQUIRE);
       T; T = T->next)
    for (struct udfprof_row *R = __atomic_load_n(&T->rows, __ATOMIC_ACQUIRE); R;
         R = R->next) {
      unsigned Used = __atomic_load_n(&R->used_count, __ATOMIC_ACQUIRE);
      for (unsigned I = 0; I < Used; ++I) {
        const struct udfprof_cell *C = R->hot[R->used[I]].cell;
        if (!isCurrent(C) || !callsOf(C))
          continue;
        if (Count < capacity)
          readCell(R, C, &out[Count]);
        ++Count;
      }
    }
  return Count;
}

size_t udfprof_operators(struct udfprof_operator_record *out, size_t capacity) {
  size_t Count = 0;
  for (struct udfprof_thread *T = __atomic_load_n(&Threads, __ATOMIC_ACQUIRE);
       T; T = T->next)
    for (struct udfprof_row *R = __atomic_load_n(&T->rows, __ATOMIC_ACQUIRE); R;
         R = R->next) {
      if (__atomic_load_n(&R->epoch, __ATOMIC_ACQUIRE) != epochNow() ||
          !R->calls)
        continue;
      if (Count < capacity) {
        memset(&out[Count], 0, sizeof *out);
        out[Count].operator_id = R->operator_id;
        out[Count].module_id = R->module_id;
        out[Count].stage = R->stage;
        out[Count].calls = R->calls;
        out[Count].time = (double)R->ticks;
      }
      ++Count;
    }
  return Count;
}

//===----------------------------------------------------------------------===//
// The process
//===----------------------------------------------------------------------===//

static void lockAll(void) {
  pthread_mutex_lock(&ThreadsLock);
  pthread_mutex_lock(&StringsLock);
  pthread_mutex_lock(&EventsLock);
  pthread_mutex_lock(&FirstsLock);
}

static void unlockAll(void) {
  pthread_mutex_unlock(&FirstsLock);
  pthread_mutex_unlock(&EventsLock);
  pthread_mutex_unlock(&StringsLock);
  pthread_mutex_unlock(&ThreadsLock);
}

/// The child has only this thread, and counts from zero. If no thread has
/// counted, no library that counts need be loaded yet, and this thread's words
/// are left alone: to touch them from here would have the C library put them
/// outside of its static block, and a library that counts could not be loaded.
static void inChild(void) {
  unlockAll();
  for (struct udfprof_thread *T = Threads; T; T = T->next)
    if (T == udfprof_self)
      T->id = (uint32_t)syscall(SYS_gettid);
    else
      T->alive = 0;
  clearAll();
  EventFirst = EventCount = 0;
  LostEvents = 0;
}

__attribute__((constructor)) static void load(void) {
  pthread_key_create(&ThreadKey, detach);
  pthread_atfork(lockAll, unlockAll, inChild);
}
