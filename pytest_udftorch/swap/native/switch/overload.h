//===- overload.h - What kernels in C++ know of an overload ---------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// How cpu_kernels.h and cuda_kernels.h put a kernel of theirs above the kernel
// in Python of a target, sort the arguments of a call into tensors and a key,
// and go to Python for calls that they cannot run. Each of them adds, in a
// namespace of its own, which kinds of calls it knows and how it runs one:
//
//   struct Key       with the operator's scalars, an array of bits of doubles
//   struct Overload  derived from Launched, with find()
//   struct Elements  the kernel of an operator that maps elements
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_OVERLOAD_H
#define UDFTORCH_OVERLOAD_H

#include "board.h"
#include "operators.h" // written by the build, from swap/operators

#include <bit>
#include <cstring>
#include <map>

namespace {

std::atomic<uint64_t> Launches{0};

//===----------------------------------------------------------------------===//
// Overloads
//===----------------------------------------------------------------------===//

/// While one lives, the thread is in a kernel in Python.
template <class Overload, class Key> struct Slow {
  Slow(Overload &O, const Key *K, const Tensor &First)
      : O(O), K(K), First(K ? First.const_data_ptr() : nullptr),
        Outer(Innermost) {
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
  Slow *Outer;
  static inline thread_local Slow *Innermost = nullptr;
};

/// What an \p Overload is derived from: what a target's kernel in C++ refers
/// to.
template <class Overload, class Key> struct Launched {
  Launched(const Board &B, KernelFunction InPython)
      : B(B), Below(std::move(InPython)) {}

  const Board &B;
  KernelFunction Kernel; ///< of the target
  KernelFunction Below;  ///< the kernel in Python

  /// Calls the stock kernel.
  template <class R, class... A> R stock(A &&...Arguments) {
    return B.Stock.call<R, A...>(B.Op, c10::DispatchKeySet(B.Key),
                                 std::forward<A>(Arguments)...);
  }

  /// Calls the kernel in Python. \p K is null if such calls are not run here.
  template <class R, class... A>
  R below(const Key *K, const Tensor &First, A &&...Arguments) {
    Slow<Overload, Key> Here(static_cast<Overload &>(*this), K, First);
    return Below.call<R, A...>(B.Op, c10::DispatchKeySet(B.Key),
                               std::forward<A>(Arguments)...);
  }
};

/// The target of a board whose kernel is one of \p Makers, above one in Python;
/// null if it has none.
template <class Overload>
std::unique_ptr<Target>
launched(Board &B, const Target &InPython,
         const std::map<std::string, void (*)(Overload &)> &Makers) {
  auto Name = c10::toString(B.Op.operator_name());
  const auto Maker = Makers.find(Name.substr(std::strlen("aten::")));
  if (Maker == Makers.end())
    return nullptr;
  auto Made = std::make_shared<Overload>(B, InPython.Kernel);
  Maker->second(*Made);
  auto Found = std::make_unique<Target>(B);
  Found->Kernel = Made->Kernel;
  Found->Owned = std::move(Made);
  return Found;
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
// What makes the kernels of overloads
//===----------------------------------------------------------------------===//

template <class Kernel>
constexpr auto make = []<class Overload>(Overload &O) {
  O.Kernel = KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
      std::make_unique<Kernel>(O));
};

/// Those of operators that map elements, by the types of their arguments.
template <template <class, bool> class Elements> struct Makers {
  template <class... A>
  static constexpr auto functional = make<Elements<Tensor(A...), false>>;
  template <class... A>
  static constexpr auto into = make<Elements<Tensor &(A..., Tensor &), false>>;
  template <class... A>
  static constexpr auto inPlace =
      make<Elements<Tensor &(Tensor &, A...), true>>;
};

using S = const c10::Scalar &;
using T = const Tensor &;
using Text = c10::string_view;

} // namespace

#endif
