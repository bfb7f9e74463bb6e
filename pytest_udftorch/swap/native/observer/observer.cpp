//===- observer.cpp - Which operator and module a thread is in ------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Keeps the contexts of udfprof.h. pytest_udftorch/swap/counting/observer.py
// compiles this file against the headers of the installed torch, as their
// layout is not a stable ABI. Of Python it uses exported functions only, so
// what one Python's headers make also runs in the others; see setCall for the
// exception.
//
// Most operators use no function and should pay nothing. So only the kernels of
// those that do are wrapped, through the pointers of their DispatchStub.
// Autograd is asked only when one of them calls its first function. The stack
// tells which operator it is when one outside the list calls a function. After
// some such calls, at::RecordFunction follows all operators, which costs every
// operator some 75 ns.
//
//===----------------------------------------------------------------------===//

#include <Python.h>

#include "glibc.h"
#include "operators.h" // written by the build, from swap/operators
#include "udfprof.h"

// As torch itself is compiled; DispatchStub.h declares its kernels by them.
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION

#include <ATen/SequenceNumber.h>
#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Distance.h>
#include <ATen/native/FusedAdam.h>
#include <ATen/native/Pow.h>
#include <ATen/native/ReduceOps.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/cpu/SoftmaxKernel.h>
#include <ATen/record_function.h>
#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <mutex>
#include <string>
#include <torch/csrc/autograd/function.h>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
#include <x86intrin.h>

UDFTORCH_OLD(dladdr);
UDFTORCH_OLD(dlsym);

// What headers of newer C and C++ libraries ask for, so that the observer also
// loads beside older ones. The process counts as having several threads.
char __libc_single_threaded = 0;
namespace std {
void __throw_bad_array_new_length() { abort(); }
} // namespace std

namespace {

using at::RecordFunction;
using at::Tensor;
namespace native = at::native;

udfprof_thread *self() {
  udfprof_thread *T = udfprof_self;
  return T ? T : udfprof_attach();
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// Returns the text of the line of Python that this thread runs, or null.
std::atomic<PyObject *> LineOf{nullptr};

/// Tells which operator ends, and the line that called it, if somebody asks
/// where symbols are called or first values are made.
void see(const char *Operator) {
  const bool Sees =
      __atomic_load_n(&udfprof_sees, __ATOMIC_RELAXED) && udfprof_unseen();
  const bool Waits = __atomic_load_n(&udfprof_waiting, __ATOMIC_RELAXED);
  if (!Sees && !Waits)
    return;
  const auto Tell = [&](const char *Line) {
    if (Sees)
      udfprof_see(Operator, Line);
    if (Waits)
      udfprof_line(Line);
  };
  PyObject *const Function = LineOf.load();
  // A thread without Python's state runs no line. Whoever waits for it may hold
  // the interpreter's lock.
  if (!Function || !PyGILState_GetThisThreadState())
    return Tell(nullptr);
  const PyGILState_STATE State = PyGILState_Ensure();
  PyObject *Type, *Error, *Trace;
  PyErr_Fetch(&Type, &Error, &Trace);
  PyObject *Text = PyObject_CallNoArgs(Function);
  const char *Line = Text ? PyUnicode_AsUTF8AndSize(Text, nullptr) : nullptr;
  Tell(Line && *Line ? Line : nullptr);
  Py_DecRef(Text);
  PyErr_Restore(Type, Error, Trace); // drops what the function raised
  PyGILState_Release(State);
}

/// While one lives, the thread is in a kernel of the operator.
struct InKernel {
  explicit InKernel(const char *Name)
      : Self(self()), Outer(Self->name), Row(udfprof_row) {
    Self->name = Name;
    udfprof_row = Self->unknown;
    if (udfprof_depth_now())
      Start = __rdtsc();
  }
  ~InKernel() {
    see(Self->name);
    if (udfprof_depth_now() && udfprof_row->is_known)
      udfprof_operator_end(Self, Start);
    Self->name = Outer;
    udfprof_row = Row;
  }
  udfprof_thread *Self;
  const char *Outer;
  struct udfprof_row *Row;
  uint64_t Start = 0;
};

/// While one lives, the thread knows how long the rows of a kernel are.
struct InRows {
  InRows(udfprof_thread *T, const Tensor &Last) : Self(T) {
    // The kernels of narrower types convert to float and leave the rest of a
    // row to the scalar function.
    if (Last.dim() &&
        (Last.scalar_type() == at::kFloat || Last.scalar_type() == at::kDouble))
      Self->row_length = Last.size(-1);
  }
  ~InRows() { Self->row_length = 0; }
  udfprof_thread *Self;
};

struct Binding {
  std::atomic<void *> *Pointer;
  void *Before, *Ours;
};

/// Stands in for a kernel. \p Rows says that it works along the last dimension.
template <auto *Stub, bool Rows, typename Function> struct Kernel;
template <auto *Stub, bool Rows, typename Result, typename... Args>
struct Kernel<Stub, Rows, Result (*)(Args...)> {
  // Written at each start, when threads may still be in here from before.
  static inline std::atomic<Result (*)(Args...)> Stock{nullptr};
  static inline std::atomic<const char *> Name{nullptr};

  static Result run(Args... Given) {
    const auto Run = Stock.load(std::memory_order_relaxed);
    InKernel Here(Name.load(std::memory_order_relaxed));
    if constexpr (Rows) {
      InRows There(Here.Self,
                   std::get<sizeof...(Args) - 1>(std::tie(Given...)));
      return Run(std::forward<Args>(Given)...);
    } else {
      return Run(std::forward<Args>(Given)...);
    }
  }

  static void bind(const char *Operator, std::vector<Binding> &All) {
    using Type = std::remove_pointer_t<decltype(Stub)>;
    void *Kernels[] = {reinterpret_cast<void *>(Type::DEFAULT),
                       reinterpret_cast<void *>(Type::AVX512),
                       reinterpret_cast<void *>(Type::AVX2)};
    // The only member of a stub. torch chooses its kernel at the first call.
    auto *Impl = reinterpret_cast<native::DispatchStubImpl *>(Stub);
    auto Chosen =
        Impl->try_get_call_ptr(c10::kCPU, Kernels[0], Kernels[1], Kernels[2]);
    if (!std::holds_alternative<void *>(Chosen))
      return;
    std::atomic<void *> *Pointer = &Impl->cpu_dispatch_ptr;
    void *Before = Pointer->load();
    // torch 2.11 forgets its choice: it leaves a null pointer and chooses at
    // each call, but it uses a pointer that is there.
    void *Now = Before ? Before : std::get<void *>(Chosen);
    void *Ours = reinterpret_cast<void *>(run);
    for (void *K : Kernels)
      if (K && Now == K) { // otherwise something stands in for it already
        Stock.store(reinterpret_cast<Result (*)(Args...)>(K),
                    std::memory_order_relaxed);
        Name.store(Operator, std::memory_order_relaxed);
        void *Expected = Before;
        if (Pointer->compare_exchange_strong(Expected, Ours))
          All.push_back({Pointer, Before, Ours});
        return;
      }
  }
};

std::vector<Binding> Bound;

template <auto *Stub, bool Rows = false> void follow(const char *Operator) {
  using Type = std::remove_pointer_t<decltype(Stub)>;
  Kernel<Stub, Rows, typename Type::FnPtr>::bind(Operator, Bound);
}

// Where a kernel serves an operator in several forms (in place, with out=), the
// first form names the operator.
void followKernels() {
#define FOLLOW(Stub, Rows, Name) follow<&native::Stub, Rows>(Name);
  UDFTORCH_FOLLOWED(FOLLOW)
#undef FOLLOW
}

void leaveKernels() {
  for (const Binding &B : Bound) {
    void *Expected = B.Ours;
    B.Pointer->compare_exchange_strong(Expected, B.Before);
  }
  Bound.clear();
}

//===----------------------------------------------------------------------===//
// All operators, and the optimizer
//===----------------------------------------------------------------------===//

std::unique_ptr<at::ObserverContext> startOperator(const RecordFunction &Fn) {
  udfprof_thread *T = self();
  if (T->depth < UDFPROF_FRAMES) {
    udfprof_frame &Frame = T->frames[T->depth];
    Frame.call = T->call;
    Frame.name = T->name;
    Frame.row = udfprof_row;
    if (udfprof_depth_now())
      Frame.start = __rdtsc();
    T->call = &Fn;
    T->name = Fn.name();
    udfprof_row = T->unknown;
  }
  ++T->depth;
  return nullptr;
}

void endOperator(const RecordFunction &Fn, at::ObserverContext *) {
  udfprof_thread *T = udfprof_self;
  // An asynchronous range ends on another thread than it began on. Nothing can
  // be done about that; ranges left behind go with the next one out.
  if (!T || !T->depth)
    return;
  if (T->depth > UDFPROF_FRAMES) {
    --T->depth;
    return;
  }
  see(Fn.name());
  uint32_t At = T->depth;
  if (T->call != &Fn) {
    while (At && T->frames[At - 1].call != &Fn)
      --At;
    if (At < 2)
      return;
    --At;
    udfprof_row = T->frames[At].row;
  }
  T->depth = At - 1;
  const udfprof_frame &Frame = T->frames[T->depth];
  if (udfprof_depth_now() && udfprof_row->is_known)
    udfprof_operator_end(T, Frame.start);
  T->call = Frame.call;
  T->name = Frame.name;
  udfprof_row = Frame.row;
}

bool isOptimizer(const RecordFunction &Fn) {
  return !strncmp(Fn.name(), "Optimizer.step#", 15);
}

std::unique_ptr<at::ObserverContext> startRange(const RecordFunction &Fn) {
  if (isOptimizer(Fn))
    ++self()->optimizer;
  return nullptr;
}

void endRange(const RecordFunction &Fn, at::ObserverContext *) {
  if (isOptimizer(Fn) && udfprof_self && udfprof_self->optimizer)
    --udfprof_self->optimizer;
}

std::mutex Lock; // of the callbacks
at::CallbackHandle Operators = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle Ranges = at::INVALID_CALLBACK_HANDLE;
bool IsObserving = false;

void addOperators() {
  Operators = at::addGlobalCallback(
      at::RecordFunctionCallback(startOperator, endOperator)
          .scopes({at::RecordScope::FUNCTION}));
}

void followAll() {
  std::lock_guard<std::mutex> Guard(Lock);
  if (IsObserving && Operators == at::INVALID_CALLBACK_HANDLE)
    addOperators();
}

//===----------------------------------------------------------------------===//
// What the runtime asks
//===----------------------------------------------------------------------===//

const void *currentNode(uint64_t *Sequence, uint64_t *Thread) {
  auto Node = torch::autograd::get_current_node();
  if (!Node)
    return nullptr;
  *Sequence = Node->sequence_nr();
  *Thread = Node->thread_id();
  return Node.get();
}

void nameOfNode(char *Text, size_t Size) {
  if (auto Node = torch::autograd::get_current_node())
    snprintf(Text, Size, "%s", Node->name().c_str());
}

/// The operator whose generated class at::_ops has a name such as
/// pow_Tensor_Scalar. Only the schemas tell which part is the overload's.
std::string operatorOf(const std::string &Class) {
  for (size_t End = Class.size(); End && End != std::string::npos;
       End = Class.rfind('_', End - 1)) {
    const std::string Name = "aten::" + Class.substr(0, End);
    const std::string Overload =
        End < Class.size() ? Class.substr(End + 1) : std::string();
    if (c10::Dispatcher::singleton().findSchema({Name, Overload}))
      return Name;
  }
  return "aten::" + Class;
}

/// The innermost function at::_ops::<class>::call or ::redispatch on the stack.
void nameOfCaller(char *Text, size_t Size) {
  static const char Prefix[] = "_ZN2at4_ops"; // then <length><class>
  void *Frames[64];
  const int Count = backtrace(Frames, 64);
  for (int I = 0; I < Count; ++I) {
    Dl_info Info;
    if (!dladdr(Frames[I], &Info) || !Info.dli_sname ||
        strncmp(Info.dli_sname, Prefix, sizeof Prefix - 1))
      continue;
    char *Name = nullptr;
    const size_t Length =
        strtoul(Info.dli_sname + sizeof Prefix - 1, &Name, 10);
    if (!Length || strnlen(Name, Length) < Length)
      continue;
    snprintf(Text, Size, "%s", operatorOf({Name, Length}).c_str());
    return;
  }
}

uint64_t currentThread() { return RecordFunction::currentThreadId(); }

const udfprof_torch Torch = {currentNode, nameOfNode, nameOfCaller, followAll,
                             currentThread};

//===----------------------------------------------------------------------===//
// Modules
//===----------------------------------------------------------------------===//

// torch.nn.Module.__call__ stays the same function object, which torch.compile
// knows and follows. While modules are watched, calls of it come here first. A
// wrapper written in Python would cost each module half a microsecond. The
// interpreter's lock guards all of this.

PyObject *Watched;
vectorcallfunc Stock;
PyObject *Find; // (module, id of the module that calls it) -> id

// Python forgets a module that dies.
std::unordered_map<PyObject *, uint32_t> Modules;

PyObject *runModule(PyObject *Function, PyObject *const *Args, size_t Count,
                    PyObject *Names) {
  if (!PyVectorcall_NARGS(Count))
    return Stock(Function, Args, Count, Names);
  udfprof_thread *T = self();
  const uint32_t Outer = T->module;
  const void *Node = T->node;
  uint32_t Id = 0;
  if (auto Known = Modules.find(Args[0]); Known != Modules.end()) {
    Id = Known->second;
  } else {
    PyObject *Found = PyObject_CallFunction(Find, "OI", Args[0], Outer);
    if (!Found)
      return nullptr;
    Id = static_cast<uint32_t>(PyLong_AsUnsignedLong(Found));
    Py_DecRef(Found);
    if (PyErr_Occurred())
      return nullptr;
    Modules[Args[0]] = Id;
  }
  T->module = Id;
  T->node = torch::autograd::get_current_node().get();
  udfprof_made(T, at::sequence_number::peek());
  PyObject *Result = Stock(Function, Args, Count, Names);
  T->module = Outer;
  T->node = Node;
  udfprof_made(T, at::sequence_number::peek());
  return Result;
}

/// A function object of Python 3.11, which has no call that sets what it does.
struct Function311 {
  PyObject Head;
  PyObject *Members[13]; // from func_globals to func_annotations
  vectorcallfunc Call;
  uint32_t Version;
};

#if PY_VERSION_HEX < 0x030c0000
static_assert(offsetof(Function311, Call) ==
              offsetof(PyFunctionObject, vectorcall));
static_assert(offsetof(Function311, Version) ==
              offsetof(PyFunctionObject, func_version));
#endif

void setCall(PyObject *Function, vectorcallfunc Call) {
  // In Python 3.12 and newer.
  using Setter = void (*)(PyObject *, vectorcallfunc);
  static const auto Set =
      reinterpret_cast<Setter>(dlsym(RTLD_DEFAULT, "PyFunction_SetVectorcall"));
  if (Set)
    return Set(Function, Call);
  auto *Old = reinterpret_cast<Function311 *>(Function);
  // No call site may have copied what the function does.
  Old->Version = 0;
  Old->Call = Call;
}

} // namespace

/// Begins to observe. Returns 0, or -1 if torch refuses.
extern "C" UDFPROF_EXPORT int udfobserver_start(int All) try {
  udfprof_set_torch(&Torch);
  std::lock_guard<std::mutex> Guard(Lock);
  Ranges =
      at::addGlobalCallback(at::RecordFunctionCallback(startRange, endRange)
                                .scopes({at::RecordScope::USER_SCOPE}));
  followKernels();
  if (All)
    addOperators();
  IsObserving = true;
  return 0;
} catch (...) {
  return -1;
}

extern "C" UDFPROF_EXPORT void udfobserver_stop() {
  std::lock_guard<std::mutex> Guard(Lock);
  IsObserving = false;
  if (Operators != at::INVALID_CALLBACK_HANDLE)
    at::removeCallback(Operators);
  Operators = at::INVALID_CALLBACK_HANDLE;
  at::removeCallback(Ranges);
  leaveKernels();
}

/// Begins to watch calls of torch.nn.Module.__call__. Returns 0, or -1 if it is
/// not a Python function.
extern "C" UDFPROF_EXPORT int udfobserver_watch_modules(PyObject *Function,
                                                        PyObject *Namer) {
  if (!PyFunction_Check(Function))
    return -1;
  Py_IncRef(Watched = Function);
  Py_IncRef(Find = Namer);
  Stock = PyVectorcall_Function(Watched);
  setCall(Watched, runModule);
  return 0;
}

/// Other threads may still be in calls that began before.
extern "C" UDFPROF_EXPORT void udfobserver_leave_modules() {
  setCall(Watched, Stock);
  Py_DecRef(std::exchange(Watched, nullptr));
  Py_DecRef(std::exchange(Find, nullptr));
  Modules.clear();
}

/// \p Function returns, as text, the line of Python that its thread runs.
extern "C" UDFPROF_EXPORT void udfobserver_ask_lines(PyObject *Function) {
  Py_IncRef(Function);
  LineOf.store(Function);
}

/// From now on, the module at this address is another one or has another name.
extern "C" UDFPROF_EXPORT void udfobserver_forget(uint64_t Module) {
  Modules.erase(reinterpret_cast<PyObject *>(Module));
}
