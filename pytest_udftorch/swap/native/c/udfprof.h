//===- udfprof.h - What instrumented functions count ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Cells: one per function, form and context of each thread. The functions that
// the pass udf-instrument rewrites fill them (llvm/pass/InstrumentLanes.cpp,
// observe.c). The observer of libtorch sets the context
// (native/observer/observer.cpp). pytest_udftorch/swap/counting/collection.py
// reads them.
//
// A thread writes only its own cells, so a call needs no lock and no atomic
// operation. Cells, contexts and threads are kept for the life of the process,
// so no pointer to one is ever stale. When a session begins, all cells and
// contexts belong to an earlier epoch and count for nothing. Their threads zero
// them at the next call, which udfprof_start sends to udfprof_turn.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_UDFPROF_H
#define UDFTORCH_UDFPROF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UDFPROF_EXPORT __attribute__((visibility("default")))

/// native/runtime.py checks this number.
#define UDFPROF_ABI 5

enum {
  // One slot per function, dtype and form: (function * 2 + dtype) * 5 + form.
  // function counts from 1 in the order of pytest_udftorch/symbols.py.
  UDFPROF_FUNCTION_SLOTS = 368,
  // One more for each UDF at operator level.
  UDFPROF_OPERATOR_UDFS = 256,
  UDFPROF_SLOTS = UDFPROF_FUNCTION_SLOTS + UDFPROF_OPERATOR_UDFS,
  UDFPROF_FORMS = 5, // scalar, v4, v8, v16, array
  UDFPROF_LOG = 4,   // the number of log
  UDFPROF_BINS = 320,
  UDFPROF_BIN_OFFSET = 160
};

// A record of a UDF at operator level has these as function (plus its number),
// dtype and form: CELL_DTYPES and CELL_FORMS of records/layout.py.
enum {
  UDFPROF_FIRST_OPERATOR_UDF = 1000,
  UDFPROF_ANY_DTYPE = 2,
  UDFPROF_WHOLE_OPERATOR = 5
};

enum { UDFPROF_COUNTERS, UDFPROF_TIMED, UDFPROF_EVENTS };
enum { UDFPROF_OTHER, UDFPROF_FORWARD, UDFPROF_BACKWARD, UDFPROF_OPTIMIZER };

// Bits of an event's flags: of the inputs, and shifted by 4 of the outputs.
enum {
  UDFPROF_NAN = 1,
  UDFPROF_INF = 2,
  UDFPROF_SUBNORMAL = 4,
  UDFPROF_ZERO = 8
};

/// Counts of special values of one side, inputs or outputs.
struct udfprof_specials {
  uint64_t zero, subnormal, pos_inf, neg_inf, nan;
};

/// Extremes of one side in the function's own type, as encodings that compare
/// like the values when taken as signed integers (see udfprof_order).
struct udfprof_range {
  int64_t min, max;
};

/// What generated code reads and writes for one function and form in one
/// context: a cache line in its row, at the offsets that InstrumentWork.h
/// states.
struct udfprof_hot {
  int64_t left; ///< calls until the next one that is looked at
  // Generated code knows what some functions make of zero and of negative
  // infinity (see InstrumentLanes.cpp), and counts these arguments itself. The
  // two counts lie apart, or LLVM would add to both in one vector, a detour.
  uint64_t zeros;
  struct udfprof_cell *cell;
  // Values inside need no second look. The bounds are the extremes so far, but
  // finite and inside cell->within, as a float or double; +inf and 0 if that is
  // empty.
  struct {
    uint64_t low, high;
  } bound[2];
  uint64_t infinities;
};

/// Bits of udfprof_cell::due: what the call that is looked at is used for.
enum { UDFPROF_SAMPLE = 1, UDFPROF_TIME = 2 };

/// What a thread knows about one function and form in one context. Out-of-line
/// code reads and writes it.
struct udfprof_cell {
  // Read by generated code, too.
  uint32_t due;
  uint32_t live; ///< lanes of this call that belong to elements
  struct udfprof_hot *hot;
  uint16_t slot;
  // For kernels that fill up the last vector of a row: see udfprof_thread.
  uint8_t zeros_are_padding;
  uint32_t epoch;   ///< that everything below was counted in
  uint64_t granted; ///< calls, when hot->left is taken away
  // A call is timed, or enters the histograms, when the number of calls before
  // it has none of these bits. All ones means never.
  uint64_t time_mask, sample_mask;
  struct udfprof_range within;   ///< arguments that generated code may let pass
  struct udfprof_range range[2]; ///< since the last event, or the beginning
  struct udfprof_range before[2]; ///< until the last event
  struct udfprof_specials specials[2];
  uint64_t elements;  ///< of the array form; the others have calls * lanes
  uint64_t in_events; ///< elements that events have been written for
  uint64_t passed_in_events[2]; ///< zeros, infinities
  uint64_t made_nan_ns, made_inf_ns, made_subnormal_ns;
  uint64_t ticks, timed_elements, hist_elements;
  // What other threads did within the current operator call.
  struct udfprof_range helped[2];
  uint64_t helped_elements;
  uint32_t flags, helped_flags; ///< since the last event
  uint64_t row_next;            ///< number of the call that ends the row
  uint32_t row_calls, row_rest;
  uint64_t padding; ///< lanes that belong to no element
  uint64_t hist[2][2][UDFPROF_BINS];
};

/// One context of one thread. What generated code indexes comes first.
struct udfprof_row {
  struct udfprof_hot hot[UDFPROF_SLOTS];
  uint64_t calls, ticks; ///< of the operator
  uint32_t operator_id, module_id;
  uint8_t stage, had_rows;
  uint8_t is_known; ///< 0: a thread's context that is not looked up yet
  uint32_t epoch;   ///< that calls and ticks were counted in
  uint16_t used_count;
  uint16_t used[UDFPROF_SLOTS];
  struct udfprof_row *next;
};

/// What is restored when an operator that RecordFunction follows ends.
struct udfprof_frame {
  const void *call;
  const char *name;
  struct udfprof_row *row;
  uint64_t start; ///< time stamp counter
};

enum { UDFPROF_FRAMES = 1024 };

enum { UDFPROF_MADE = 1 << 15, UDFPROF_MADE_MASK = UDFPROF_MADE - 1 };

/// The sequence number from which autograd's nodes were made in a module.
struct udfprof_made {
  uint64_t sequence;
  uint32_t module;
};

struct udfprof_region;

struct udfprof_thread {
  uint32_t module;  ///< being called
  const void *node; ///< that autograd ran when the module was called
  uint32_t optimizer;
  const char *name; ///< of the innermost operator, null outside of any
  const void *call; ///< the innermost RecordFunction, where there is one
  uint32_t depth;
  struct udfprof_region *region;
  // Elements of a row while a kernel of softmax or log_softmax works along the
  // last dimension, otherwise 0. Such a kernel fills up the last vector of each
  // row with zeros, subtracts the row's maximum and exponentiates. Only the end
  // of the row tells padding from values.
  int64_t row_length;
  struct udfprof_made *made; ///< a ring
  uint64_t made_count;
  uint64_t torch_id;
  uint32_t id; ///< the kernel's
  uint32_t alive;
  struct udfprof_row *unknown; ///< the row until one is looked up
  struct udfprof_row *rows;
  struct udfprof_row **table; ///< open addressing over operator, module, stage
  uint32_t table_size, table_used;
  struct {
    const char *text;
    uint32_t id;
  } names[256]; ///< the last operators met, by the address of their name
  struct {
    const void *caller;
    uint32_t id, calls;
  } callers[256]; ///< the last callers met outside of operators
  struct {
    const void *node;
    uint64_t sequence;
    uint32_t id;
  } last_node; ///< met outside of operators
  struct udfprof_thread *next;
  struct udfprof_frame frames[UDFPROF_FRAMES];
};

/// One function within one call of an operator. Laid out as EVENT in
/// records/layout.py, but start and end are time stamp counts, and the ids of
/// strings are this file's.
struct udfprof_event {
  uint64_t start, end;
  uint32_t thread;
  uint16_t function;
  uint8_t dtype, stage;
  uint32_t operator_id, module_id;
  uint64_t elements;
  double in_min, in_max, out_min, out_max;
  uint32_t flags, pad;
};

/// Laid out as CELL in records/layout.py, with the same exceptions.
struct udfprof_cell_record {
  uint16_t function;
  uint8_t dtype, form, stage, device, pad[2]; // device: 0, the CPU
  uint32_t operator_id, module_id;
  uint64_t calls, elements;
  double in_min, in_max, out_min, out_max;
  struct udfprof_specials in, out;
  uint64_t made_nan_ns, made_inf_ns, made_subnormal_ns;
  double time; ///< in time stamp counts
  uint64_t timed_elements, hist_elements;
  uint64_t hist_in[2][UDFPROF_BINS], hist_out[2][UDFPROF_BINS];
} __attribute__((packed));

/// Laid out as OPERATOR there.
struct udfprof_operator_record {
  uint32_t operator_id, module_id;
  uint8_t stage, device, pad[6];
  uint64_t calls;
  double time; ///< in time stamp counts
};

/// What the runtime asks the observer, which alone knows torch's types.
struct udfprof_torch {
  /// The node that autograd runs on this thread, or null.
  const void *(*node)(uint64_t *sequence, uint64_t *thread);
  /// Writes its name, truncated to \p size.
  void (*node_name)(char *text, size_t size);
  /// Finds on the stack which operator's code called this thread's current
  /// function, and writes the operator's name; empty if there is none.
  void (*caller_name)(char *text, size_t size);
  /// Follows all operators from now on, including those outside the list.
  void (*follow_all)(void);
  uint64_t (*thread)(void);
};

/// Calls by an operator outside the list before all operators are followed.
enum { UDFPROF_PATIENCE = 64 };

// With these models, a library that is loaded late reaches these words with two
// instructions. They fit into the room that the C library keeps.
extern UDFPROF_EXPORT __thread struct udfprof_row *udfprof_row
    __attribute__((tls_model("initial-exec")));
extern UDFPROF_EXPORT __thread struct udfprof_thread *udfprof_self
    __attribute__((tls_model("initial-exec")));

/// The row of threads that nothing is known about yet.
UDFPROF_EXPORT extern struct udfprof_row udfprof_unknown;
UDFPROF_EXPORT extern uint32_t udfprof_depth; ///< see udfprof_depth_now

/// The depth of the session, which may begin while other threads count.
static inline uint32_t udfprof_depth_now(void) {
  return __atomic_load_n(&udfprof_depth, __ATOMIC_RELAXED);
}

UDFPROF_EXPORT int udfprof_abi(void);

/// The cell of \p slot in the context that this thread is in. Never null.
/// \p caller: return address of the instrumented function.
UDFPROF_EXPORT struct udfprof_cell *udfprof_cell(uint32_t slot,
                                                 const void *caller);

/// Slow path of an instrumented function that has used up hot->left. Returns
/// the cell, with what the call is due for. Generated code may let arguments
/// pass between the encodings \p low and \p high; both are 0 for all arguments.
UDFPROF_EXPORT struct udfprof_cell *
udfprof_turn(uint32_t slot, const void *caller, uint64_t low, uint64_t high);

/// Adds the time of \p elements to the cell.
UDFPROF_EXPORT void udfprof_time(struct udfprof_cell *cell, uint64_t ticks,
                                 uint64_t elements);

/// The time stamp counter.
UDFPROF_EXPORT uint64_t udfprof_ticks(void);

/// Counts a call, which began at \p start and ends now, of the UDF at operator
/// level with this \p number, below UDFPROF_OPERATOR_UDFS.
UDFPROF_EXPORT void udfprof_operator_udf(uint32_t number, uint64_t elements,
                                         uint64_t start);

/// CLOCK_MONOTONIC in nanoseconds.
UDFPROF_EXPORT uint64_t udfprof_now(void);

/// CLOCK_MONOTONIC in nanoseconds, at which a cell first made a special value.
/// Within an operator, the value waits for the line of Python that called it.
UDFPROF_EXPORT uint64_t udfprof_first(void);

/// How many such values wait for their lines.
UDFPROF_EXPORT extern uint32_t udfprof_waiting;

/// Notes that \p line, as text or null, calls the operator in which this thread
/// is, for the values that wait for it.
UDFPROF_EXPORT void udfprof_line(const char *line);

/// When a cell first made a special value, and in which line; 0 if unknown.
struct udfprof_first_line {
  uint64_t ns;
  uint32_t line_id;
  uint32_t pad;
};

/// Writes those whose line is known, at most \p capacity of them, in the order
/// in which they were made. Returns how many. There is room for the first 256.
UDFPROF_EXPORT size_t udfprof_first_lines(struct udfprof_first_line *out,
                                          size_t capacity);

/// Where this thread is: the module's id times 4, plus the stage.
UDFPROF_EXPORT uint64_t udfprof_place(void);

/// Where a symbol was first called whose marking trampoline (udfrt.h) set a
/// mark: the operator and the line of Python that calls it, 0 if unknown, and
/// the place as udfprof_place() has it.
struct udfprof_sight {
  uint32_t operator_id;
  uint32_t line_id;
  uint64_t place;
};

/// Begins to note sights, or, if \p on is 0, ends it. Forgets all.
UDFPROF_EXPORT void udfprof_sighting(int on);
/// Writes the sight of the trampoline \p index. Returns 0 if it has none.
UDFPROF_EXPORT int udfprof_sight(size_t index, struct udfprof_sight *out);
/// Whether there are marks of which udfprof_see() was not told.
UDFPROF_EXPORT int udfprof_unseen(void);
/// Notes that the marks that are new belong to \p name, which ends now, and
/// that \p line calls it, as text; each may be null.
UDFPROF_EXPORT void udfprof_see(const char *name, const char *line);
/// Whether to call it.
UDFPROF_EXPORT extern uint32_t udfprof_sees;

UDFPROF_EXPORT struct udfprof_thread *udfprof_attach(void);
/// Keeps the pointer.
UDFPROF_EXPORT void udfprof_set_torch(const struct udfprof_torch *torch);

/// End of an operator that used a function, at the depths timed and events.
UDFPROF_EXPORT void udfprof_operator_end(struct udfprof_thread *self,
                                         uint64_t start);

/// Nodes that autograd makes from \p sequence on belong to \p self's module.
UDFPROF_EXPORT void udfprof_made(struct udfprof_thread *self,
                                 uint64_t sequence);

/// Bytes that this file has allocated and not given back in the life of the
/// process, including events and their ring.
UDFPROF_EXPORT uint64_t udfprof_memory(void);

/// Zeroes everything and begins to count. One in \p stride calls of a vector
/// form enters the histograms (a power of two; 1 for all).
UDFPROF_EXPORT void udfprof_start(uint32_t depth, uint32_t stride);
UDFPROF_EXPORT void udfprof_stop(void);

/// Returns the number of records and writes at most \p capacity of them.
/// Threads may go on counting.
UDFPROF_EXPORT size_t udfprof_cells(struct udfprof_cell_record *out,
                                    size_t capacity);
UDFPROF_EXPORT size_t udfprof_operators(struct udfprof_operator_record *out,
                                        size_t capacity);
/// Takes up to \p capacity events out of the ring.
UDFPROF_EXPORT size_t udfprof_events(struct udfprof_event *out,
                                     size_t capacity);
UDFPROF_EXPORT uint64_t udfprof_lost_events(void);
/// Gives the ring room for \p capacity events, which may be 0. Returns 0 or
/// ENOMEM.
UDFPROF_EXPORT int udfprof_ring(size_t capacity);

UDFPROF_EXPORT uint32_t udfprof_intern(const char *text);
UDFPROF_EXPORT const char *udfprof_string(uint32_t id);
UDFPROF_EXPORT uint32_t udfprof_string_count(void);

/// One reading of both clocks: time stamp counter, CLOCK_MONOTONIC.
UDFPROF_EXPORT void udfprof_clocks(uint64_t *ticks, uint64_t *monotonic_ns);

/// Calls \p function in the context of an operator, whose name must stay.
/// Kernels of ours need it: the observer looks at those of torch.
UDFPROF_EXPORT void udfprof_within(const char *name, void (*function)(void *),
                                   void *data);

/// Stands in for GOMP_parallel: hands the caller's context to the workers.
UDFPROF_EXPORT void udfprof_parallel(void (*function)(void *), void *data,
                                     unsigned threads, unsigned flags);
/// The function that it stands in for.
UDFPROF_EXPORT extern void (*udfprof_gomp_parallel)(void (*)(void *), void *,
                                                    unsigned, unsigned);

#ifdef __cplusplus
}
#endif

#endif
