//===- switchboard.cpp - The overrides of a process -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The boards (board.h), their targets in Python (python_kernel.h) and in C++
// (cpu_kernels.h, cuda_kernels.h, tape.h), and the calls by which
// switchboard.py makes and switches them.
// pytest_udftorch/swap/overrides/switchboard.py compiles this file against the
// headers of the installed torch.
//
// Everything here that can run a user's code is called with the lock of
// Python's interpreter and without any other.
//
//===----------------------------------------------------------------------===//

#include "python_kernel.h"

#include "boards.h" // written by the build
#include "cpu_kernels.h"
#include "cuda_kernels.h"
#include "kernel_of.h"
#include "tape.h"

#include <pthread.h>

namespace {

using Register = KernelFunction (*)(const Board &,
                                    std::optional<c10::impl::CppSignature> &);

template <class Type>
KernelFunction typed(const Board &B,
                     std::optional<c10::impl::CppSignature> &Signature) {
  Signature = c10::impl::CppSignature::make<Type>();
  return KernelFunction::makeFromUnboxedFunctor<false, Switch<Type>>(
      std::make_unique<Switch<Type>>(B));
}

/// Overload -> what makes its board. boards.h has them.
const std::map<std::string, Register> &known() {
#define BOARD(Name, Operator) {Name, typed<at::_ops::Operator::schema>},
  static const std::map<std::string, Register> All = {UDFTORCH_BOARDS(BOARD)};
#undef BOARD
  return All;
}

using Place = std::pair<std::string, c10::DispatchKey>;

std::map<Place, std::unique_ptr<Board>> &boards() {
  static auto *All = new std::map<Place, std::unique_ptr<Board>>;
  return *All;
}

/// torch 2.11 warns of the first kernel in a process that lies above another.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

Board &boardOf(const std::string &Name, c10::DispatchKey Key) {
  auto &Found = boards()[{Name, Key}];
  if (Found)
    return *Found;
  OperatorHandle Op = handleOf(Name);
  KernelFunction Stock = udf::detail::kernelOf(Op, Key);
  auto Made = std::make_unique<Board>(
      Board{Op, Key, boards().size() - 1, std::move(Stock), std::nullopt});
  std::optional<c10::impl::CppSignature> Signature;
  const auto Type = known().find(Name);
  KernelFunction Kernel = Type != known().end()
                              ? Type->second(*Made, Signature)
                              : KernelFunction::makeFromBoxedFunctor(
                                    std::make_unique<BoxedSwitch>(*Made));
  Quiet Handler;
  c10::WarningUtils::WarningHandlerGuard Handled(&Handler);
  // It stays to the end: torch must not call it while the process goes down.
  Made->Registration.emplace(c10::Dispatcher::singleton().registerImpl(
      Op.operator_name(), Key, std::move(Kernel), Signature, nullptr,
      "a board of pytest_udftorch"));
  Found = std::move(Made);
  return *Found;
}

void afterFork() {
  // Of the other threads nothing is left but what they noted.
  for (Reader *R = Readers.load(); R; R = R->Next)
    if (R != Thread.Mine) {
      R->Since.store(0);
      R->Taken.store(false);
    }
}

[[maybe_unused]] const int Watched =
    pthread_atfork(nullptr, nullptr, afterFork);

} // namespace

extern "C" {

/// The board of an overload at a dispatch key, registered once; null with a
/// message after an error.
EXPORT void *udfswitch_board(const char *Name, const char *Key, char *Message,
                             size_t Size) {
  Board *Found = nullptr;
  guarded(Message, Size, [&] {
    std::lock_guard<std::mutex> Guard(Lock);
    Found = &boardOf(Name, c10::parseDispatchKey(Key));
  });
  return Found;
}

/// Whether the C++ type of an overload is known, so that its board costs
/// little.
EXPORT int udfswitch_typed(const char *Name) {
  return static_cast<int>(known().count(Name));
}

/// A target of a board that calls a function in Python.
EXPORT void *udfswitch_python(void *On, PyObject *Function, char *Message,
                              size_t Size) {
  Target *Made = nullptr;
  guarded(Message, Size, [&] {
    auto &B = *static_cast<Board *>(On);
    auto New = std::make_unique<Target>(B);
    New->Kernel = KernelFunction::makeFromBoxedFunctor(
        std::make_unique<PythonKernel>(B, Function));
    Made = New.release();
  });
  return Made;
}

/// A target of a board that calls a kernel which another library made, a
/// KernelFunction. The library stays loaded.
EXPORT void *udfswitch_foreign(void *On, const void *Kernel) {
  auto Made = std::make_unique<Target>(*static_cast<Board *>(On));
  Made->Kernel = *static_cast<const KernelFunction *>(Kernel);
  return Made.release();
}

/// The stock kernel of a board, a KernelFunction.
EXPORT const void *udfswitch_stock(const void *On) {
  return &static_cast<const Board *>(On)->Stock;
}

/// The kernel of a target, a KernelFunction.
EXPORT const void *udfswitch_kernel(const void *Of) {
  return &static_cast<const Target *>(Of)->Kernel;
}

/// A table of targets.
EXPORT void *udfswitch_table(void *const *Targets, size_t Count) {
  auto Made = std::make_unique<Table>();
  for (size_t I = 0; I < Count; ++I) {
    const auto *T = static_cast<const Target *>(Targets[I]);
    if (Made->At.size() <= T->On.Index)
      Made->At.resize(T->On.Index + 1);
    Made->At[T->On.Index] = T;
  }
  return Made.release();
}

/// Switches to a table; null stands for the stock kernels.
EXPORT void udfswitch_exchange(const void *New) {
  Active.store(static_cast<const Table *>(New));
}

/// Frees a table that is not active, and a target that no table has, once no
/// thread is inside of what they were for. Both may be null.
EXPORT void udfswitch_drop(void *Old, void *Unused) {
  std::lock_guard<std::mutex> Guard(Lock);
  retire(static_cast<const Table *>(Old), static_cast<Target *>(Unused));
}

/// Frees what was dropped and is free of threads. Returns how much is left.
EXPORT size_t udfswitch_collect() {
  std::vector<Retired> Free;
  size_t Left = 0;
  {
    std::lock_guard<std::mutex> Guard(Lock);
    Free = takeUnused();
    Left = retired().size();
  }
  return Left;
}

/// Sets what boards do when this thread calls them, a Mode; returns the mode
/// before.
EXPORT int udfswitch_mode(int Wanted) {
  return std::exchange(Thread.Now, Wanted);
}

/// What boards do when this thread calls them.
EXPORT int udfswitch_mode_now() { return Thread.Now; }

/// Calls on this thread that a probe ended.
EXPORT uint64_t udfswitch_hits() { return Thread.Hits; }
}
