//===- observe.c - Out-of-line half of the instrumented functions ---------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// This file is compiled together with each instrumented library, for its CPU.
// The code that udf-instrument generates compares every value with the bounds
// in its cell. It comes here with each block that holds something new (an
// extreme, a zero, a subnormal, an infinity, a NaN) and with each block that is
// sampled for the histograms. Array functions are watched only from here.
//
// Values are classified by their encodings, so that the result is the same
// when the processor flushes subnormals (FTZ, DAZ).
//
// This file includes itself, once for each type and number of lanes.
//
//===----------------------------------------------------------------------===//

#ifndef LANES

#include "udfprof.h"
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define PASTE3(a, b, c) a##b##c
#define NAME3(a, b, c) PASTE3(a, b, c)
#define NAMED(What) NAME3(What, SUFFIX, LANES)

// All bits but the sign. Generated code reads them here (InstrumentWork.cpp).
HIDDEN __attribute__((used)) uint32_t __udf_magnitude_f = 0x7fffffff;
HIDDEN __attribute__((used)) uint64_t __udf_magnitude_d = 0x7fffffffffffffff;

#define REAL float
#define INT int32_t
#define SUFFIX f
#define MANTISSA 23
#define EXPONENTS 255
#define LANES 1
#include "observe.c"
#if defined(__AVX512F__)
#define LANES 8
#include "observe.c"
#endif
// Arrays go by the widest register.
#define ARRAYS
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#include "observe.c"
#undef ARRAYS
#undef REAL
#undef INT
#undef SUFFIX
#undef MANTISSA
#undef EXPONENTS

#define REAL double
#define INT int64_t
#define SUFFIX d
#define MANTISSA 52
#define EXPONENTS 2047
#define LANES 1
#include "observe.c"
#if defined(__AVX512F__)
#define LANES 4
#include "observe.c"
#endif
// Arrays go by the widest register.
#define ARRAYS
#if defined(__AVX512F__)
#define LANES 8
#elif defined(__AVX2__)
#define LANES 4
#else
#define LANES 2
#endif
#include "observe.c"
#undef ARRAYS

#else // LANES

#define BITS (8 * (int)sizeof(REAL))
#define MAGNITUDE ((INT)(((uint64_t)1 << (BITS - 1)) - 1))
#define INFINITE ((INT)((uint64_t)EXPONENTS << MANTISSA))
#define SMALLEST_NORMAL ((INT)((uint64_t)1 << MANTISSA))

#define Vector NAMED(vector_)
#define Word NAMED(word_)
#define Mask NAMED(mask_)
#if LANES == 1
typedef REAL Vector;
typedef INT Word;
#define LOWEST(W) (W)
#define HIGHEST(W) (W)
#else
typedef REAL Vector __attribute__((ext_vector_type(LANES)));
typedef INT Word __attribute__((ext_vector_type(LANES)));
typedef _Bool Mask __attribute__((ext_vector_type(LANES)));
#define LOWEST(W) __builtin_reduce_min(W)
#define HIGHEST(W) __builtin_reduce_max(W)
#endif

/// One bit per lane.
static inline uint32_t NAMED(lanes_)(Word Truth) {
#if LANES == 1
  return (uint32_t)(Truth & 1);
#else
  Mask M = __builtin_convertvector(Truth, Mask);
  uint16_t Bits = 0;
  memcpy(&Bits, &M, sizeof M);
  return Bits & ((1u << LANES) - 1);
#endif
}

#if LANES == 1
#define WHERE(Condition) ((INT) - (Condition))
#else
#define WHERE(Condition) (Condition)
#endif

/// Counts the lanes in \p Live of one side; returns the UDFPROF_NAN bits.
static inline uint32_t NAMED(side_)(struct udfprof_cell *C, int Side, Vector X,
                                    uint32_t Live) {
  Word B;
  memcpy(&B, &X, sizeof B);
  const Word M = B & MAGNITUDE;
  uint32_t Flags = 0;
  uint32_t Nan = NAMED(lanes_)(WHERE(M > INFINITE)) & Live;
  uint32_t Special =
      Nan |
      (NAMED(lanes_)(WHERE(M == INFINITE) | WHERE(M < SMALLEST_NORMAL)) & Live);
  if (Special) {
    struct udfprof_specials *S = &C->specials[Side];
    uint32_t Zero = NAMED(lanes_)(WHERE(M == 0)) & Live;
    uint32_t Inf = NAMED(lanes_)(WHERE(M == INFINITE)) & Live;
    uint32_t Negative = NAMED(lanes_)(WHERE(B < 0)) & Inf;
    uint32_t Subnormal = Special & ~(Zero | Inf | Nan);
    if (Zero)
      S->zero += (unsigned)__builtin_popcount(Zero);
    if (Subnormal)
      S->subnormal += (unsigned)__builtin_popcount(Subnormal);
    if (Inf) {
      S->neg_inf += (unsigned)__builtin_popcount(Negative);
      S->pos_inf += (unsigned)__builtin_popcount(Inf ^ Negative);
    }
    if (Nan)
      S->nan += (unsigned)__builtin_popcount(Nan);
    Flags = (Zero ? UDFPROF_ZERO : 0) | (Inf ? UDFPROF_INF : 0) |
            (Subnormal ? UDFPROF_SUBNORMAL : 0) | (Nan ? UDFPROF_NAN : 0);
  }
  // Signed integers in the order of the values; -0 comes before +0.
  const Word Key = B ^ ((B >> (BITS - 1)) & MAGNITUDE);
  struct udfprof_range *R = &C->range[Side];
  // An empty range lies beyond every value.
  const INT Least = R->min > MAGNITUDE ? MAGNITUDE : (INT)R->min;
  const INT Most = R->max < -MAGNITUDE - 1 ? -MAGNITUDE - 1 : (INT)R->max;
  uint32_t Numbers = Live & ~Nan;
  if (NAMED(lanes_)(WHERE(Key < Least) | WHERE(Key > Most)) & Numbers) {
    const Word Number = WHERE(M <= INFINITE);
    Word Low = (Key & Number) | (~Number & MAGNITUDE);
    Word High = (Key & Number) | (~Number & (-MAGNITUDE - 1));
#if LANES > 1
    if (Live != (1u << LANES) - 1)
      for (int I = 0; I < LANES; ++I)
        if (!(Live >> I & 1)) {
          Low[I] = MAGNITUDE;
          High[I] = -MAGNITUDE - 1;
        }
#endif
    if (LOWEST(Low) < R->min)
      R->min = LOWEST(Low);
    if (HIGHEST(High) > R->max)
      R->max = HIGHEST(High);
    // The bounds for generated code are the same, but finite. Those of
    // arguments also lie inside the range that generated code may let pass.
    INT First = (INT)R->min, Last = (INT)R->max;
    const INT Infinity = INFINITE;
    First = First < -Infinity ? -Infinity
                              : First; // key of the lowest finite number
    Last = Last >= Infinity ? Infinity - 1 : Last;
    if (!Side) {
      First = R->min < C->within.min ? (INT)C->within.min : First;
      Last = R->max > C->within.max ? (INT)C->within.max : Last;
    }
    if (First > Last) {
      First = Infinity;
      Last = 0;
    }
    First ^= (First >> (BITS - 1)) & MAGNITUDE;
    Last ^= (Last >> (BITS - 1)) & MAGNITUDE;
    memcpy(&C->hot->bound[Side].low, &First, sizeof First);
    memcpy(&C->hot->bound[Side].high, &Last, sizeof Last);
  }
  return Flags;
}

static inline void NAMED(note_)(struct udfprof_cell *C, uint32_t In,
                                uint32_t Out) {
  C->flags |= In | Out << 4;
  const uint32_t Made = Out & ~In;
  if (!Made)
    return;
  if (Made & UDFPROF_NAN && !C->made_nan_ns)
    C->made_nan_ns = udfprof_first();
  if (Made & UDFPROF_INF && !C->made_inf_ns)
    C->made_inf_ns = udfprof_first();
  if (Made & UDFPROF_SUBNORMAL && !C->made_subnormal_ns)
    C->made_subnormal_ns = udfprof_first();
}

static inline void NAMED(bins_)(uint64_t (*Hist)[UDFPROF_BINS], Vector X,
                                uint32_t Live) {
  Word B;
  memcpy(&B, &X, sizeof B);
  const Word M = B & MAGNITUDE;
  const uint32_t Subnormal =
      NAMED(lanes_)(WHERE(M < SMALLEST_NORMAL) & WHERE(M != 0)) & Live;
  uint32_t Rest = NAMED(lanes_)(WHERE(M < INFINITE) & WHERE(M != 0)) & Live;
  Rest ^= Subnormal;
  Word Bin = (M >> MANTISSA) + (UDFPROF_BIN_OFFSET - EXPONENTS / 2);
#if EXPONENTS > UDFPROF_BINS
  const Word Last = M * 0 + (UDFPROF_BINS - 1);
#if LANES == 1
  Bin = Bin < 0 ? 0 : Bin > Last ? Last : Bin;
#else
  Bin = __builtin_elementwise_max(__builtin_elementwise_min(Bin, Last), M * 0);
#endif
#endif
  Bin += (B >> (BITS - 1)) & UDFPROF_BINS; // negatives take the second half
  INT At[LANES];
  memcpy(At, &Bin, sizeof At);
  uint64_t *Flat = (uint64_t *)Hist;
  for (; Rest; Rest &= Rest - 1)
    ++Flat[At[__builtin_ctz(Rest)]];
  INT Bits[LANES];
  memcpy(Bits, &B, sizeof Bits);
  for (Rest = Subnormal; Rest; Rest &= Rest - 1) {
    const INT X1 = Bits[__builtin_ctz(Rest)];
    // The exponent is that of the highest bit that is set.
    int One = 64 - __builtin_clzll((uint64_t)(X1 & MAGNITUDE)) - MANTISSA -
              EXPONENTS / 2 + UDFPROF_BIN_OFFSET;
    ++Hist[X1 < 0][One < 0 ? 0 : One];
  }
}

#define ALL ((1u << LANES) - 1)

/// The lanes of this call that belong to elements.
static inline uint32_t NAMED(live_)(struct udfprof_cell *C, Vector X) {
#if LANES > 1
  if (C->zeros_are_padding) {
    Word B;
    memcpy(&B, &X, sizeof B);
    const uint32_t Live = ~NAMED(lanes_)(WHERE(B == 0)) & ALL;
    C->padding += LANES - (unsigned)__builtin_popcount(Live);
    return Live;
  }
  const uint32_t Live = C->live & ALL;
  C->live = UINT32_MAX;
  return Live;
#else
  (void)C;
  (void)X;
#endif
  return ALL;
}

// For one argument, for two arguments, and for two results (sincos). Each
// returns the result, so that the generated code can end in a jump to it.

static inline void NAMED(look1_)(struct udfprof_cell *C, Vector X, Vector Y,
                                 uint32_t Live) {
  NAMED(note_)(C, NAMED(side_)(C, 0, X, Live), NAMED(side_)(C, 1, Y, Live));
}

static inline void NAMED(look2_)(struct udfprof_cell *C, Vector X1, Vector X2,
                                 Vector Y, uint32_t Live) {
  uint32_t In = NAMED(side_)(C, 0, X1, Live) | NAMED(side_)(C, 0, X2, Live);
  NAMED(note_)(C, In, NAMED(side_)(C, 1, Y, Live));
}

HIDDEN Vector NAMED(__udf_observe1_)(struct udfprof_cell *C, Vector X,
                                     Vector Y) {
  NAMED(look1_)(C, X, Y, NAMED(live_)(C, X));
  return Y;
}

HIDDEN Vector NAMED(__udf_observe2_)(struct udfprof_cell *C, Vector X1,
                                     Vector X2, Vector Y) {
  NAMED(look2_)(C, X1, X2, Y, ALL);
  return Y;
}

/// For a call whose arguments hold nothing new.
HIDDEN Vector NAMED(__udf_result_)(struct udfprof_cell *C, Vector Y) {
  NAMED(note_)(C, 0, NAMED(side_)(C, 1, Y, ALL));
  return Y;
}

HIDDEN Vector NAMED(__udf_sample1_)(struct udfprof_cell *C, Vector X,
                                    Vector Y) {
  const uint32_t Live = NAMED(live_)(C, X);
  C->hist_elements += (unsigned)__builtin_popcount(Live);
  NAMED(bins_)(C->hist[0], X, Live);
  NAMED(bins_)(C->hist[1], Y, Live);
  NAMED(look1_)(C, X, Y, Live);
  return Y;
}

HIDDEN Vector NAMED(__udf_sample2_)(struct udfprof_cell *C, Vector X1,
                                    Vector X2, Vector Y) {
  C->hist_elements += LANES;
  NAMED(bins_)(C->hist[0], X1, ALL);
  NAMED(bins_)(C->hist[0], X2, ALL);
  NAMED(bins_)(C->hist[1], Y, ALL);
  NAMED(look2_)(C, X1, X2, Y, ALL);
  return Y;
}

#if LANES == 1
HIDDEN void NAMED(__udf_joint_)(uint32_t Slot, const void *Caller, REAL X,
                                REAL Y1, REAL Y2) {
  struct udfprof_cell *C = udfprof_cell(Slot, Caller);
  if (!(C->granted++ & C->sample_mask)) {
    ++C->hist_elements;
    NAMED(bins_)(C->hist[0], X, ALL);
    NAMED(bins_)(C->hist[1], Y1, ALL);
    NAMED(bins_)(C->hist[1], Y2, ALL);
  }
  uint32_t Out = NAMED(side_)(C, 1, Y1, ALL) | NAMED(side_)(C, 1, Y2, ALL);
  NAMED(note_)(C, NAMED(side_)(C, 0, X, ALL), Out);
}
#endif

//===----------------------------------------------------------------------===//
// Arrays
//===----------------------------------------------------------------------===//

#ifdef ARRAYS

// Elements that are looked at closely when one of them is new.
#undef PIECE
#define PIECE (16 * LANES)

static inline Vector NAMED(load_)(const REAL *From) {
  Vector X;
  memcpy(&X, From, sizeof X);
  return X;
}

static inline INT NAMED(order_)(INT Bits) {
  return Bits ^ ((Bits >> (BITS - 1)) & MAGNITUDE);
}

/// Whether \p Count elements, a multiple of LANES, hold nothing new: all are
/// inside the bounds, and none is zero or subnormal. Works on integers, whose
/// minimum and maximum need no masks.
static inline int NAMED(old_)(const struct udfprof_cell *C, int Side,
                              const REAL *From, int64_t Count) {
  Word Low, High, Least;
  for (int64_t I = 0; I < Count; I += LANES) {
    const Vector X = NAMED(load_)(From + I);
    Word B;
    memcpy(&B, &X, sizeof B);
    const Word M = B & MAGNITUDE;
    const Word Key = B ^ ((B >> (BITS - 1)) & MAGNITUDE);
    Low = I ? __builtin_elementwise_min(Low, Key) : Key;
    High = I ? __builtin_elementwise_max(High, Key) : Key;
    Least = I ? __builtin_elementwise_min(Least, M) : M;
  }
  INT First, Last;
  memcpy(&First, &C->hot->bound[Side].low, sizeof First);
  memcpy(&Last, &C->hot->bound[Side].high, sizeof Last);
  return LOWEST(Low) >= NAMED(order_)(First) &&
         HIGHEST(High) <= NAMED(order_)(Last) &&
         LOWEST(Least) >= SMALLEST_NORMAL;
}

/// Looks at one side of a chunk. \p Sampled is the block that enters the
/// histograms, or negative for none.
static uint32_t NAMED(array_side_)(struct udfprof_cell *C, int Side,
                                   const REAL *From, int64_t Count,
                                   int64_t Sampled) {
  uint32_t Flags = 0;
  int64_t I = 0;
  while (Count - I >= LANES) {
    const int64_t Piece =
        Count - I < PIECE ? (Count - I) / LANES * LANES : PIECE;
    if (!NAMED(old_)(C, Side, From + I, Piece))
      for (int64_t J = I; J < I + Piece; J += LANES)
        Flags |= NAMED(side_)(C, Side, NAMED(load_)(From + J), ALL);
    I += Piece;
  }
  if (I < Count) {
    REAL Rest[LANES] = {0};
    memcpy(Rest, From + I, (size_t)(Count - I) * sizeof *From);
    Flags |= NAMED(side_)(C, Side, NAMED(load_)(Rest), (1u << (Count - I)) - 1);
  }
  const int64_t Stride = (int64_t)((C->sample_mask + 1) * LANES);
  for (int64_t S = Sampled; S >= 0 && S < Count; S += Stride) {
    REAL Some[LANES] = {0};
    const int64_t Have = Count - S < LANES ? Count - S : LANES;
    memcpy(Some, From + S, (size_t)Have * sizeof *From);
    NAMED(bins_)(C->hist[Side], NAMED(load_)(Some), (1u << Have) - 1);
    if (Side)
      C->hist_elements += (uint64_t)Have;
  }
  return Flags;
}

#define ArrayFunction NAME3(function_, SUFFIX, )
typedef void ArrayFunction(int64_t, const REAL *, REAL *, int64_t);
#define ArrayFunction2 NAME3(function2_, SUFFIX, )
typedef void ArrayFunction2(int64_t, const REAL *, const REAL *, REAL *,
                            int64_t);

/// Calls \p Function on chunks of \p Chunk elements (0: on all at once). Looks
/// at the inputs first, as the output may overwrite them. \p B is null for
/// functions of one argument.
HIDDEN void NAME3(__udf_watch_array_,
                  SUFFIX, )(uint32_t Slot, const void *Caller, int64_t Chunk,
                            void *Function, int64_t Count, const REAL *A,
                            const REAL *B, REAL *Out, int64_t Mode) {
  struct udfprof_cell *C = udfprof_cell(Slot, Caller);
  if (Count > 0)
    ++C->granted;
  if (Chunk <= 0)
    Chunk = Count;
  for (int64_t I = 0; I < Count; I += Chunk) {
    const int64_t N = Count - I < Chunk ? Count - I : Chunk;
    // One block of LANES elements in sample_mask + 1 blocks, counted over all
    // calls.
    const uint64_t First = (C->elements + LANES - 1) / LANES;
    const uint64_t Due = ((First + C->sample_mask) & ~C->sample_mask) * LANES;
    const int64_t Sampled =
        C->sample_mask == UINT64_MAX || Due - C->elements >= (uint64_t)N ? -1
        : C->sample_mask ? (int64_t)(Due - C->elements)
                         : 0;
    uint32_t In = NAMED(array_side_)(C, 0, A + I, N, Sampled);
    if (B)
      In |= NAMED(array_side_)(C, 0, B + I, N, Sampled);
    const uint64_t Start = __builtin_readcyclecounter();
    if (B)
      ((ArrayFunction2 *)Function)(N, A + I, B + I, Out + I, Mode);
    else
      ((ArrayFunction *)Function)(N, A + I, Out + I, Mode);
    if (udfprof_depth_now())
      udfprof_time(C, __builtin_readcyclecounter() - Start, (uint64_t)N);
    NAMED(note_)(C, In, NAMED(array_side_)(C, 1, Out + I, N, Sampled));
    C->elements += (uint64_t)N;
  }
}

#endif // ARRAYS

#undef ALL
#undef BITS
#undef MAGNITUDE
#undef INFINITE
#undef SMALLEST_NORMAL
#undef Vector
#undef Word
#undef Mask
#undef LOWEST
#undef HIGHEST
#undef WHERE
#undef LANES

#endif
