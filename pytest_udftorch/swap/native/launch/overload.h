//===- overload.h - What both launchers know of an overload ---------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// How cpu_launch.cpp and cuda_launch.cpp put a kernel of theirs above the
// kernel in Python of an overload, sort the arguments of a call into tensors
// and a key, and go to Python for calls that they cannot run. A launcher adds
// which kinds of calls it knows and how it runs one:
//
//   struct Key       with the operator's scalars, an array of bits of doubles
//   struct Overload  derived from Registered, with find() and forget()
//   struct Elements  the kernel of an operator that maps elements
//
// A launcher is one file, so all of this has internal linkage.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_OVERLOAD_H
#define UDFTORCH_OVERLOAD_H

#include "glibc.h"
#include "libstdcxx.h"
#include "operators.h" // written by the build, from swap/operators

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#define EXPORT __attribute__((visibility("default")))

// What headers of newer C libraries ask for, so that a launcher also loads
// beside older ones. The process counts as having several threads.
char __libc_single_threaded = 0;

namespace {

using at::Tensor;
using c10::KernelFunction;
using c10::OperatorHandle;

std::mutex Lock; // of the overloads, and of what a launcher keeps for them
std::atomic<uint64_t> Launches{0};

//===----------------------------------------------------------------------===//
// Kernels of the dispatcher
//===----------------------------------------------------------------------===//

OperatorHandle handleOf(const std::string &Name) {
  const size_t Dot = Name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + Name.substr(0, Dot)).c_str(),
      Dot == std::string::npos ? "" : Name.substr(Dot + 1).c_str());
}

/// Calls a kernel boxed, the only way to it that torch 2.11 offers.
template <class Safe> struct Boxed : c10::OperatorKernel {
  explicit Boxed(Safe Inner) : Inner(std::move(Inner)) {}
  void operator()(const OperatorHandle &Op, c10::DispatchKeySet Keys,
                  c10::Stack *Stack) {
    Inner.callBoxed(Op, Keys, Stack);
  }
  Safe Inner;
};

template <class Safe> KernelFunction kernelIn(Safe Inner) {
  if constexpr (requires { Inner.kernelFunction(); })
    return Inner.kernelFunction();
  else
    return KernelFunction::makeFromBoxedFunctor(
        std::make_unique<Boxed<Safe>>(std::move(Inner)));
}

//===----------------------------------------------------------------------===//
// Overloads
//===----------------------------------------------------------------------===//

/// While one lives, the thread is in a kernel in Python.
template <class Overload, class Key> struct Slow {
  Slow(Overload &O, const Key *K, const Tensor &First)
      : O(O), K(K), First(K ? First.const_data_ptr() : nullptr),
        Generation(O.Generation), Outer(Innermost) {
    Innermost = this;
  }
  ~Slow() { Innermost = Outer; }
  Slow(const Slow &) = delete;
  Slow &operator=(const Slow &) = delete;

  /// Where this thread is, if calls like that can be run by the launcher, and
  /// the first tensor of the call has the address \p First.
  static Slow *pending(const void *First) {
    Slow *Here = Innermost;
    return Here && Here->K && Here->First == First ? Here : nullptr;
  }

  Overload &O;
  const Key *K; ///< null if calls like this are not run by the launcher
  const void *First;
  uint32_t Generation; ///< of the overload, for keys that are without one
  Slow *Outer;
  static inline thread_local Slow *Innermost = nullptr;
};

/// What a launcher's \p Overload is derived from. It lives as long as the
/// process.
template <class Overload, class Key, c10::DispatchKey Backend>
struct Registered {
  explicit Registered(OperatorHandle Op) : Op(std::move(Op)) {}

  OperatorHandle Op;
  KernelFunction Kernel; ///< of the launcher
  std::optional<c10::impl::CppSignature> Signature;
  std::optional<c10::RegistrationHandleRAII> Registration;
  KernelFunction Below; ///< the kernel in Python
  KernelFunction Stock;
  std::atomic<uint32_t> Generation{0}; ///< how often it forgot its kinds

  /// The kernel that the overload has now.
  KernelFunction current() const {
    return kernelIn(Op.getComputedKernelForDispatchKey(Backend));
  }

  /// Registers the launcher's kernel above the one that is there.
  void registerAbove(const char *Debug) {
    Below = current();
    Registration.emplace(c10::Dispatcher::singleton().registerImpl(
        Op.operator_name(), Backend, Kernel, Signature, nullptr, Debug));
  }

  /// Calls the stock kernel.
  template <class R, class... A> R stock(A &&...Arguments) {
    const KernelFunction Kept = Stock; // a session may close meanwhile
    return Kept.call<R, A...>(Op, c10::DispatchKeySet(Backend),
                              std::forward<A>(Arguments)...);
  }

  /// Calls the kernel in Python. \p K is null if such calls are not run by the
  /// launcher.
  template <class R, class... A>
  R below(const Key *K, const Tensor &First, A &&...Arguments) {
    Slow<Overload, Key> Here(static_cast<Overload &>(*this), K, First);
    const KernelFunction Kept = Below; // a session may close meanwhile
    return Kept.call<R, A...>(Op, c10::DispatchKeySet(Backend),
                              std::forward<A>(Arguments)...);
  }

  /// Those that were asked for so far.
  static std::map<std::string, std::unique_ptr<Overload>> &all() {
    // Never destroyed: kernels in Python must not die after the interpreter.
    static auto *All = new std::map<std::string, std::unique_ptr<Overload>>;
    return *All;
  }

  /// The overload of a name. \p Makers has what makes its kernel.
  static Overload &
  of(const std::string &Name,
     const std::map<std::string, void (*)(Overload &)> &Makers) {
    auto Found = all().find(Name);
    if (Found == all().end()) {
      auto Made = std::make_unique<Overload>(handleOf(Name));
      Makers.at(Name)(*Made);
      Found = all().emplace(Name, std::move(Made)).first;
    }
    return *Found->second;
  }
};

/// Runs \p Do under the lock. Returns 0, or -1 with what it threw in
/// \p Message.
template <class Body>
int guarded(char *Message, size_t Size, const Body &Do) noexcept {
  try {
    std::lock_guard<std::mutex> Guard(Lock);
    Do();
    return 0;
  } catch (const c10::Error &E) {
    std::strncpy(Message, E.what_without_backtrace(), Size - 1);
  } catch (const std::exception &E) {
    std::strncpy(Message, E.what(), Size - 1);
  } catch (...) {
    std::strncpy(Message, "unknown error", Size - 1);
  }
  return -1;
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

bool mayShare(const Tensor &X, const Tensor &Y) {
  return X.storage().data() == Y.storage().data();
}

/// The arguments of one call.
template <class Key> struct Arguments {
  const Tensor *In[3] = {};
  unsigned Inputs = 0, Scalars = 0;
  Tensor *Out = nullptr;
  Key K;
  bool Odd = false; ///< an argument that only Python knows

  void scalar(double Value) {
    if (Scalars == std::size(K.Scalars))
      Odd = true;
    else
      K.Scalars[Scalars++] = std::bit_cast<uint64_t>(Value);
  }
  void take(const Tensor &T) { In[Inputs++] = &T; }
  void take(Tensor &T) { Out = &T; }
  void take(const c10::Scalar &S) {
    if (S.isFloatingPoint() || S.isIntegral(/*includeBool=*/true))
      S.isSymbolic() ? void(Odd = true) : scalar(S.toDouble());
    else
      Odd = true;
  }
  void take(c10::string_view Text) {
    if (Text == "none" || Text == "tanh")
      scalar(Text == "tanh");
    else
      Odd = true;
  }

  /// Whether the output has storage of its own, apart from inputs that it does
  /// not replace: those from \p Begin to \p End.
  bool isApart(unsigned Begin, unsigned End) const {
    for (unsigned I = Begin; I < End; ++I)
      if (mayShare(*In[I], *Out))
        return false;
    return true;
  }
};

template <class First, class... Rest>
const First &firstOf(const First &Found, const Rest &...) {
  return Found;
}

/// Takes what an operator was called with. One in place also reads what it
/// writes.
template <bool InPlace, class Call, class... A>
void takeAll(Call &C, A &...Given) {
  if constexpr (InPlace)
    C.take(firstOf(Given...));
  (C.take(Given), ...);
}

/// Whether dimensions have names; later versions of torch have none.
template <class Impl> bool isNamed(const Impl &X) {
  if constexpr (requires { X.has_named_tensor_meta(); })
    return X.has_named_tensor_meta();
  else
    return false;
}

bool hasNames(const Tensor &X) { return isNamed(*X.unsafeGetTensorImpl()); }

bool areAlike(const Tensor &X, const Tensor &Y) {
  return X.scalar_type() == Y.scalar_type() && X.device() == Y.device() &&
         X.sizes() == Y.sizes() && X.strides() == Y.strides() && !hasNames(Y);
}

/// Whether ATen multiplies a power out, or takes roots.
bool isMultipliedOut(double Exponent) {
  for (double Known : {UDFTORCH_MULTIPLIED_OUT})
    if (Exponent == Known)
      return true;
  return false;
}

//===----------------------------------------------------------------------===//
// What makes the kernels of a launcher's overloads
//===----------------------------------------------------------------------===//

template <class Type, bool InPlace> struct Elements;

template <class Kernel>
constexpr auto make = []<class Overload>(Overload &O) {
  O.Kernel = KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
      std::make_unique<Kernel>(O));
  O.Signature = c10::impl::CppSignature::make<typename Kernel::Type>();
};

using S = const c10::Scalar &;
using T = const Tensor &;
using Text = c10::string_view;

template <class... A> constexpr auto functional() {
  return make<Elements<Tensor(A...), false>>;
}
template <class... A> constexpr auto into() {
  return make<Elements<Tensor &(A..., Tensor &), false>>;
}
template <class... A> constexpr auto inPlace() {
  return make<Elements<Tensor &(Tensor &, A...), true>>;
}

} // namespace

#endif
