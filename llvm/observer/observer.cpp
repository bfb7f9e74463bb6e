//===- observer.cpp - Which operator a thread is in -----------------------===//
//
// Callbacks of at::RecordFunction that keep the contexts of udfprof.h. Compiled
// by pytest_udftorch/instrument.py against the headers of the installed torch,
// as their layout is no stable ABI.
//
// The callbacks run around every operator, most of which use no function: they
// push and pop, and leave the rest to the first function that is called.
//
//===----------------------------------------------------------------------===//

#include "udfprof.h"

// As torch itself is compiled; DispatchStub.h declares its kernels by them.
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION

#include <ATen/core/TensorBody.h>
#include <ATen/native/cpu/SoftmaxKernel.h>
#include <ATen/record_function.h>
#include <atomic>
#include <cstring>
#include <torch/csrc/autograd/function.h>
#include <x86intrin.h>

namespace {

using at::RecordFunction;

std::unique_ptr<at::ObserverContext> startOperator(const RecordFunction &Fn) {
  udfprof_thread *T = udfprof_self;
  if (!T)
    T = udfprof_attach();
  if (T->depth < UDFPROF_FRAMES) {
    udfprof_frame &Frame = T->frames[T->depth];
    Frame.call = T->call;
    Frame.row = udfprof_row;
    Frame.module = T->module;
    Frame.stage = T->stage;
    if (udfprof_depth)
      Frame.start = __rdtsc();
    T->call = &Fn;
    udfprof_row = &udfprof_unknown;
    int64_t Sequence = Fn.seqNr();
    if (Sequence >= 0) {
      if (T->module) {
        if (!T->made)
          udfprof_make_ring(T);
        if (T->made)
          T->made[Sequence & UDFPROF_MADE_MASK] = {
              static_cast<uint32_t>(Sequence), T->module};
      }
    } else if (!strncmp(Fn.name(), "autograd::engine", 16)) {
      // A node of the backward pass. No module is being called in it, unless
      // it calls one itself (a recomputation).
      T->stage = UDFPROF_BACKWARD;
      T->module = 0;
    }
  }
  ++T->depth;
  return nullptr;
}

void endOperator(const RecordFunction &Fn, at::ObserverContext *) {
  udfprof_thread *T = udfprof_self;
  // An asynchronous range ends on another thread than it began on, and there
  // is nothing to be done for it; those left behind go with the next one out.
  if (!T || !T->depth)
    return;
  if (T->depth > UDFPROF_FRAMES) {
    --T->depth;
    return;
  }
  if (T->call != &Fn) {
    uint32_t At = T->depth;
    while (At && T->frames[At - 1].call != &Fn)
      --At;
    if (!At)
      return;
    T->depth = At - 1;
    T->call = &Fn;
    udfprof_row = T->frames[At - 1].row;
    T->module = T->frames[At - 1].module;
    T->stage = T->frames[At - 1].stage;
    if (!T->depth)
      return;
  }
  const udfprof_frame &Frame = T->frames[--T->depth];
  if (udfprof_depth && udfprof_row != &udfprof_unknown)
    udfprof_operator_end(T, &Frame);
  T->call = Frame.call;
  udfprof_row = Frame.row;
  T->module = Frame.module;
  T->stage = Frame.stage;
}

bool isOptimizer(const RecordFunction &Fn) {
  return !strncmp(Fn.name(), "Optimizer.step#", 15);
}

std::unique_ptr<at::ObserverContext> startRange(const RecordFunction &Fn) {
  if (isOptimizer(Fn))
    ++udfprof_attach()->optimizer;
  return nullptr;
}

void endRange(const RecordFunction &Fn, at::ObserverContext *) {
  if (isOptimizer(Fn) && udfprof_self && udfprof_self->optimizer)
    --udfprof_self->optimizer;
}

const char *nameOf(const void *Call) {
  return static_cast<const RecordFunction *>(Call)->name();
}

int currentNode(uint64_t *Sequence, uint64_t *Thread) {
  auto Node = torch::autograd::get_current_node();
  if (!Node)
    return 0;
  *Sequence = Node->sequence_nr();
  *Thread = Node->thread_id();
  return 1;
}

uint64_t currentThread() { return RecordFunction::currentThreadId(); }

/// While it lives, the thread knows how long the rows of a kernel are.
struct RowLength {
  explicit RowLength(const at::Tensor &T) : Self(udfprof_attach()) {
    // The kernels of narrower types convert to float and leave the rest of a
    // row to the scalar function.
    if (T.dim() &&
        (T.scalar_type() == at::kFloat || T.scalar_type() == at::kDouble))
      Self->row_length = T.size(-1);
  }
  ~RowLength() { Self->row_length = 0; }
  udfprof_thread *Self;
};

/// Stands in for a kernel that works along the last dimension.
template <typename Stub, typename... Args> struct Kernel {
  using Function = void (*)(Args...);
  static inline Function Stock = nullptr;

  /// The stub's pointer comes first in it; if what lies there is none of the
  /// stub's functions, it is not, and nothing is done.
  static std::atomic<void *> *pointer(Stub &S) {
    auto *Pointer = reinterpret_cast<std::atomic<void *> *>(&S);
    void *Now = Pointer->load();
    for (Function F : {Stub::DEFAULT, Stub::AVX2, Stub::AVX512})
      if (F && Now == reinterpret_cast<void *>(F))
        return Pointer;
    return nullptr;
  }

  static void bind(Stub &S, Function Ours) {
    if (auto *Pointer = pointer(S)) {
      Stock = reinterpret_cast<Function>(Pointer->load());
      Pointer->store(reinterpret_cast<void *>(Ours));
    }
  }

  static void restore(Stub &S, Function Ours) {
    auto *Pointer = reinterpret_cast<std::atomic<void *> *>(&S);
    void *Expected = reinterpret_cast<void *>(Ours);
    if (Stock)
      Pointer->compare_exchange_strong(Expected,
                                       reinterpret_cast<void *>(Stock));
  }
};

using at::Tensor;
namespace native = at::native;
using Softmax = Kernel<decltype(native::softmax_lastdim_kernel), const Tensor &,
                       const Tensor &>;
using LogSoftmax = Kernel<decltype(native::log_softmax_lastdim_kernel),
                          const Tensor &, const Tensor &>;
using LogSoftmaxBackward =
    Kernel<decltype(native::log_softmax_backward_lastdim_kernel),
           const Tensor &, const Tensor &, const Tensor &>;

void softmax(const Tensor &Out, const Tensor &In) {
  RowLength Row(In);
  Softmax::Stock(Out, In);
}

void logSoftmax(const Tensor &Out, const Tensor &In) {
  RowLength Row(In);
  LogSoftmax::Stock(Out, In);
}

void logSoftmaxBackward(const Tensor &GradIn, const Tensor &Grad,
                        const Tensor &Out) {
  RowLength Row(Out);
  LogSoftmaxBackward::Stock(GradIn, Grad, Out);
}

const udfprof_torch Torch = {nameOf, currentNode, currentThread};

at::CallbackHandle Operators, Ranges;

} // namespace

/// Begins to observe; 0, or -1 when torch refuses.
extern "C" UDFPROF_EXPORT int udfobserver_start() try {
  udfprof_set_torch(&Torch);
  Operators = at::addGlobalCallback(
      at::RecordFunctionCallback(startOperator, endOperator)
          .scopes({at::RecordScope::FUNCTION}));
  Ranges =
      at::addGlobalCallback(at::RecordFunctionCallback(startRange, endRange)
                                .scopes({at::RecordScope::USER_SCOPE}));
  Softmax::bind(native::softmax_lastdim_kernel, softmax);
  LogSoftmax::bind(native::log_softmax_lastdim_kernel, logSoftmax);
  LogSoftmaxBackward::bind(native::log_softmax_backward_lastdim_kernel,
                           logSoftmaxBackward);
  return 0;
} catch (...) {
  return -1;
}

extern "C" UDFPROF_EXPORT void udfobserver_stop() {
  at::removeCallback(Operators);
  at::removeCallback(Ranges);
  Softmax::restore(native::softmax_lastdim_kernel, softmax);
  LogSoftmax::restore(native::log_softmax_lastdim_kernel, logSoftmax);
  LogSoftmaxBackward::restore(native::log_softmax_backward_lastdim_kernel,
                              logSoftmaxBackward);
}
