//===- board.h - Overridden operators, switched by one pointer ------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A board is a kernel of torch's dispatcher that stands for one overload at
// one dispatch key. It is registered once and stays. What it does is in a table
// that open sessions share: a target for each board that they override. A
// switch builds a table aside and exchanges one pointer. Without a table, and
// for boards that the table leaves out, a board calls the stock kernel.
//
// Readers take no lock. A thread that has entered a board finishes with the
// target that it found: tables and targets that are taken away are freed once
// no thread is inside that entered before (epoch-based reclamation; K. Fraser,
// Practical lock-freedom, University of Cambridge, 2004, chapter 5.2.3).
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_BOARD_H
#define UDFTORCH_BOARD_H

#include "glibc.h"
#include "libstdcxx.h"

#include <ATen/TracerMode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#define EXPORT __attribute__((visibility("default")))

// What headers of newer C libraries ask for, so that a build also loads beside
// older ones. The process counts as having several threads.
char __libc_single_threaded = 0;

namespace {

using at::Tensor;
using c10::KernelFunction;
using c10::OperatorHandle;

/// One overload at one dispatch key. It lives as long as the process.
struct Board {
  OperatorHandle Op;
  c10::DispatchKey Key;
  size_t Index;
  KernelFunction Stock; ///< what was there before
  std::optional<c10::RegistrationHandleRAII> Registration;
};

/// What a table has for a board.
struct Target {
  explicit Target(Board &B) : On(B) {}
  Target(const Target &) = delete;
  Target &operator=(const Target &) = delete;

  Board &On;
  KernelFunction Kernel;
  std::shared_ptr<void> Owned; ///< what the kernel refers to
};

/// The target of each board, by its index; null for the stock kernel.
struct Table {
  std::vector<const Target *> At;
};

std::atomic<const Table *> Active{nullptr};

//===----------------------------------------------------------------------===//
// Threads inside of boards
//===----------------------------------------------------------------------===//

std::atomic<uint64_t> Epoch{1};

/// The epoch in which a thread entered its outermost board; 0 outside.
struct alignas(64) Reader {
  std::atomic<uint64_t> Since{0};
  std::atomic<bool> Taken{true};
  Reader *Next = nullptr;
};

std::atomic<Reader *> Readers{nullptr}; // never freed, used again

Reader *takeReader() {
  for (Reader *R = Readers.load(); R; R = R->Next) {
    bool Free = false;
    if (R->Taken.compare_exchange_strong(Free, true))
      return R;
  }
  auto *Made = new Reader;
  Made->Next = Readers.load();
  while (!Readers.compare_exchange_weak(Made->Next, Made))
    ;
  return Made;
}

/// What boards do when a thread calls them; dispatcher.py has the same numbers.
enum Mode : int { Normal, Probe, Bypass };

struct ThreadState {
  ~ThreadState() {
    if (Mine) {
      Mine->Since.store(0);
      Mine->Taken.store(false);
    }
  }
  Reader *Mine = nullptr;
  unsigned Depth = 0;
  int Now = Normal;
  uint64_t Hits = 0; ///< calls that a probe ended
};

thread_local ThreadState Thread;

/// While one lives, nothing is freed that a table had when it began.
class Inside {
public:
  Inside() : T(Thread) {
    if (T.Depth++)
      return;
    if (!T.Mine)
      T.Mine = takeReader();
    T.Mine->Since.store(Epoch.load());
  }
  ~Inside() {
    if (!--T.Depth)
      T.Mine->Since.store(0, std::memory_order_release);
  }
  Inside(const Inside &) = delete;
  Inside &operator=(const Inside &) = delete;

  ThreadState &T;
};

/// What a probe throws instead of running a kernel.
struct Reached : std::exception {
  const char *what() const noexcept override { return "udf: reached"; }
};

/// The target of a call, or null for the stock kernel.
///
/// While a graph is traced, torch excludes the tracer below the operators that
/// it records. An operator that arrives with it is not recorded: its stock
/// kernel calls those that are.
const Target *targetOf(const Board &B, ThreadState &T) {
  if (T.Now == Bypass || at::tracer::impl::is_dispatch_enabled())
    return nullptr;
  const Table *Now = Active.load();
  const Target *Found =
      Now && B.Index < Now->At.size() ? Now->At[B.Index] : nullptr;
  if (Found && T.Now == Probe) {
    ++T.Hits;
    throw Reached();
  }
  return Found;
}

/// The kernel of a board, where it is called with a stack.
struct BoxedSwitch : c10::OperatorKernel {
  explicit BoxedSwitch(const Board &B) : B(B) {}
  void operator()(const OperatorHandle &, c10::DispatchKeySet Keys,
                  c10::Stack *Stack) {
    Inside Here;
    const Target *Found = targetOf(B, Here.T);
    (Found ? Found->Kernel : B.Stock).callBoxed(B.Op, Keys, Stack);
  }
  const Board &B;
};

/// The same of an operator that has the C++ type R(A...).
template <class Type> struct Switch;

template <class R, class... A> struct Switch<R(A...)> final : BoxedSwitch {
  using BoxedSwitch::BoxedSwitch;

  R operator()(c10::DispatchKeySet Keys, A... Arguments) {
    if (__builtin_expect(!Active.load(std::memory_order_acquire), 1))
      return B.Stock.call<R, A...>(B.Op, Keys, std::forward<A>(Arguments)...);
    return chosen(Keys, std::forward<A>(Arguments)...);
  }

private:
  [[gnu::noinline]] R chosen(c10::DispatchKeySet Keys, A... Arguments) {
    Inside Here;
    const Target *Found = targetOf(B, Here.T);
    const KernelFunction &Kernel = Found ? Found->Kernel : B.Stock;
    return Kernel.call<R, A...>(B.Op, Keys, std::forward<A>(Arguments)...);
  }
};

} // namespace

/// A call with a stack stays one. Torch's own form of this takes each stack
/// apart, in code that takes long to compile.
template <class Type, bool AllowLegacyTypes>
struct c10::impl::make_boxed_from_unboxed_functor<Switch<Type>,
                                                  AllowLegacyTypes>
    final {
  static void call(OperatorKernel *Functor, const OperatorHandle &Op,
                   DispatchKeySet Keys, Stack *Stack) {
    (*static_cast<BoxedSwitch *>(Functor))(Op, Keys, Stack);
  }
};

namespace {

//===----------------------------------------------------------------------===//
// Switching
//===----------------------------------------------------------------------===//

std::mutex Lock; // of all below; nothing that it guards runs a user's code

/// Taken away in an epoch, and freed once nobody is inside since before.
struct Retired {
  uint64_t In;
  std::unique_ptr<const Table> Old;
  std::unique_ptr<Target> Unused;
};

std::vector<Retired> &retired() {
  // Never destroyed: a thread may be inside of a board when the process ends.
  static auto *All = new std::vector<Retired>;
  return *All;
}

void retire(const Table *Old, Target *Unused) {
  const uint64_t In = Epoch.fetch_add(1) + 1;
  retired().push_back(
      {In, std::unique_ptr<const Table>(Old), std::unique_ptr<Target>(Unused)});
}

/// Takes out what may be freed. The caller frees it without the lock: the
/// objects of Python among it may run a user's code.
std::vector<Retired> takeUnused() {
  uint64_t Oldest = Epoch.load() + 1;
  for (Reader *R = Readers.load(); R; R = R->Next)
    if (const uint64_t Since = R->Since.load())
      Oldest = std::min(Oldest, Since);
  std::vector<Retired> Free, Kept;
  for (Retired &Each : retired())
    (Each.In <= Oldest ? Free : Kept).push_back(std::move(Each));
  retired() = std::move(Kept);
  return Free;
}

/// Runs \p Do. Returns 0, or -1 with what it threw in \p Message.
template <class Body>
int guarded(char *Message, size_t Size, const Body &Do) noexcept {
  const char *Text = "unknown error";
  try {
    Do();
    return 0;
  } catch (const c10::Error &E) {
    std::strncpy(Message, E.what_without_backtrace(), Size - 1);
  } catch (const std::exception &E) {
    std::strncpy(Message, E.what(), Size - 1);
  } catch (...) {
    std::strncpy(Message, Text, Size - 1);
  }
  return -1;
}

OperatorHandle handleOf(const std::string &Name) {
  const size_t Dot = Name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      Name.substr(0, Dot).c_str(),
      Dot == std::string::npos ? "" : Name.substr(Dot + 1).c_str());
}

} // namespace

#endif
