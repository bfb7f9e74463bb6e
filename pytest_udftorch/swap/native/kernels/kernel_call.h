//===- kernel_call.h - Calls of the contract's kernels for the CPU --------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A kernel takes the calls that it computes by the compiled contract of
// native/operator/contract.h: float32 on the CPU, in the shapes and layouts
// that stock accepts. Every other call goes on to the kernel in Python below
// it, which has the same bits, and stock's words for what stock refuses.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_KERNEL_CALL_H
#define UDFTORCH_KERNEL_CALL_H

#include "glibc.h"
#include "libstdcxx.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <array>
#include <atomic>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#define EXPORT __attribute__((visibility("default")))

// Each operation is rounded by itself, as those of torch's operators are.
#pragma STDC FP_CONTRACT OFF

// What headers of newer C libraries ask for, so that a build also loads beside
// older ones. The process counts as having several threads.
char __libc_single_threaded = 0;

namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::KernelFunction;
using OptionalTensor = std::optional<Tensor>;
using Sizes = c10::SmallVector<int64_t, 6>;

//===----------------------------------------------------------------------===//
// The compiled contract
//===----------------------------------------------------------------------===//

/// The array form of a function of one argument.
using Array = void(int64_t, const float *, float *, int64_t);

/// `struct threads` of cpu_loops.h.
struct Threads {
  const void *Parallel;
  int64_t Count;
  const char *Name;
  const void *Within;
};

/// `struct rows` of contract_rows.h.
struct Rows {
  int64_t Rows, N, Channels = 1;
  const float *X = nullptr, *Grad = nullptr, *Weight = nullptr, *Bias = nullptr;
  float *Mean = nullptr, *Rstd = nullptr, *Y = nullptr, *Second = nullptr;
  Array *Exp = nullptr, *Log = nullptr;
  double Eps = 0;
  int64_t Next = 0, Failed = 0;
};

/// `struct convolution` of contract_convolutions.h.
struct Convolution {
  int64_t Batch, Groups, Rows, Depth;
  int64_t Size[3], Spread[3], Before[3], Room[3], Taps[3], Step[3], Dilation[3],
      Result[3];
  const float *X;
  int64_t Xs[5];
  const float *W;
  int64_t Ws[6];
  const float *Bias;
  float *Y;
};

/// `struct heads` of contract_attention.h.
struct HeadsOf {
  const uint16_t *X = nullptr;
  int64_t Sample = 0, Head = 0, Row = 0, Column = 0;
};

/// `struct exact_attention` of contract_attention.h.
struct ExactAttention {
  int64_t Samples, Heads, OfKeys, Queries, Keys, Size;
  HeadsOf Q, K, V, Grad;
  const void *Mask = nullptr;
  int64_t Sample = 0, Head = 0, Row = 0, Column = 0, MaskKind = 0, Causal = 0;
  double Factor;
  Array *Exp, *Log;
  float *Out = nullptr, *Logs = nullptr;
  float *OfQuery = nullptr, *OfKey = nullptr, *OfValue = nullptr;
  int64_t Parts = 0, Next = 0, Failed = 0;
};

using AttentionFunction = int(ExactAttention *, const Threads *);
using RowsFunction = int(Rows *, const Threads *);
using WindowsFunction = int(const Convolution *, const Threads *);

/// The functions that kernels call, by their names in the compiled contract.
#define UDFTORCH_CONTRACT(F)                                                   \
  F(fast_mm, int(int64_t, int64_t, int64_t, const float *, int64_t, int64_t,   \
                 const float *, int64_t, int64_t, float *, const Threads *))   \
  F(fast_bmm, int(int64_t, int64_t, int64_t, int64_t, const float *, int64_t,  \
                  int64_t, int64_t, const float *, int64_t, int64_t, int64_t,  \
                  float *, const Threads *))                                   \
  F(fast_exact_mm,                                                             \
    int(int64_t, int64_t, int64_t, const uint16_t *, int64_t, int64_t,         \
        const uint16_t *, int64_t, int64_t, float *, const Threads *))         \
  F(fast_exact_bmm, int(int64_t, int64_t, int64_t, int64_t, const uint16_t *,  \
                        int64_t, int64_t, int64_t, const uint16_t *, int64_t,  \
                        int64_t, int64_t, float *, const Threads *))           \
  F(fast_exact_attention, AttentionFunction)                                   \
  F(fast_exact_attention_backward, AttentionFunction)                          \
  F(fast_sums,                                                                 \
    void(int64_t, int64_t, int64_t, const float *, float *, const Threads *))  \
  F(fast_prefixes,                                                             \
    void(int64_t, int64_t, int64_t, const float *, float *, const Threads *))  \
  F(fast_scatter,                                                              \
    void(int64_t, int64_t, const int64_t *, const int64_t *, const int64_t *,  \
         int64_t, const float *, float *, const Threads *))                    \
  F(random_words, void(int64_t, uint64_t, uint32_t *, const Threads *))        \
  F(fast_roots, void(int64_t, const float *, float *, const Threads *))        \
  F(fast_convolution, WindowsFunction)                                         \
  F(fast_weight_gradient, WindowsFunction)                                     \
  F(fast_layer_norm, RowsFunction)                                             \
  F(fast_layer_norm_backward, RowsFunction)                                    \
  F(fast_softmax, RowsFunction)                                                \
  F(fast_log_softmax, RowsFunction)                                            \
  F(fast_softmax_backward, RowsFunction)                                       \
  F(fast_log_softmax_backward, RowsFunction)                                   \
  F(fast_attention_weights, RowsFunction)                                      \
  F(fast_batch_norm, RowsFunction)                                             \
  F(fast_batch_norm_inference, RowsFunction)                                   \
  F(fast_batch_norm_backward, RowsFunction)

/// The compiled contract of one CPU level: an array of addresses that Python
/// fills in. It lives as long as the process.
struct Contract {
  const void *Parallel; ///< torch's slot for parallel regions, or null
#define MEMBER(Name, ...) std::type_identity_t<__VA_ARGS__> *Name;
  UDFTORCH_CONTRACT(MEMBER)
#undef MEMBER

  Threads threads(const char *Operator) const {
    return {Parallel, Parallel ? at::get_num_threads() : 1, Operator, nullptr};
  }
};

/// The one that is in use; null until Python has used it.
std::atomic<const Contract *> InUse{nullptr};

/// The functions of the open sessions that softmax calls; it lives as long as
/// the process.
struct Functions {
  Array *Exp, *Log;
};

/// Those of the sessions that are open now; null if they swap no such function,
/// or a profile counts their calls.
std::atomic<const Functions *> OfSessions{nullptr};

/// Whether they were called since somebody asked.
std::atomic<bool> Called{false};

const Functions *functions() {
  const Functions *Found = OfSessions.load(std::memory_order_acquire);
  if (Found && !Called.load(std::memory_order_relaxed))
    Called.store(true, std::memory_order_relaxed);
  return Found;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// Calls that the compiled contract computed.
std::atomic<uint64_t> Taken{0};

/// Whether this thread's calls all go to the kernels in Python.
thread_local bool ToPython = false;

/// What a kernel knows of its overload.
struct Place {
  c10::OperatorHandle Op;
  c10::DispatchKeySet Keys;
  KernelFunction Stock, Below; ///< the stock kernel, and that in Python
  uint64_t Dtypes; ///< those of the UDF, as bits; none for every dtype

  /// Whether the call goes to the stock kernel, by the dtype of a tensor.
  bool isStocks(const Tensor &X) const {
    return Dtypes && !(Dtypes >> static_cast<int>(X.scalar_type()) & 1);
  }
  template <class... A> bool isStocks(const Tensor &X, const A &...) const {
    return isStocks(X);
  }
  template <class... A> bool isStocks(const A &...) const { return false; }
};

bool isGiven(const OptionalTensor &X) { return X && X->defined(); }

//===----------------------------------------------------------------------===//
// 16 bits
//===----------------------------------------------------------------------===//

/// How the results of a call in 16 bits are rounded: their dtypes are stock's.
enum class Rounds {
  All,        ///< each to the dtype of the call
  Products,   ///< the same, but for bfloat16, whose factors are not widened
  Mixed,      ///< the same; further arguments may be float32
  First,      ///< the first so, further ones to the dtype of parameters
  Weighted,   ///< the same, with a weight, which decides
  Statistics, ///< the same, unless statistics are written in 16 bits
  FirstOnly,  ///< the first so, as Mixed; further ones stay in float32
  Never       ///< Python has such calls
};

/// The dtype in 16 bits of a call's tensors.
struct Narrow {
  std::optional<at::ScalarType> Found, Asked, Given;
  bool Mixed = false, Wide = false;

  void see(const Tensor &X) {
    if (!X.defined() || !at::isFloatingType(X.scalar_type()))
      return;
    const at::ScalarType D = X.scalar_type();
    if (D == at::kFloat)
      Wide = true;
    else if ((D != at::kBFloat16 && D != at::kHalf) || (Found && *Found != D))
      Mixed = true;
    else
      Found = D;
  }
  void see(const OptionalTensor &X) {
    if (X)
      see(*X);
  }
  void see(at::ScalarType D) { Given = D; }
  void see(const std::optional<at::ScalarType> &D) {
    if (D)
      Asked = D;
  }
  template <class T> void see(const T &) {}

  bool is(const OptionalTensor &X) const {
    return X && X->defined() && X->scalar_type() == *Found;
  }
  Tensor widened(const Tensor &X) const { return is(X) ? X.to(at::kFloat) : X; }
  OptionalTensor widened(const OptionalTensor &X) const {
    return X ? OptionalTensor(widened(*X)) : X;
  }
  std::optional<at::ScalarType>
  widened(const std::optional<at::ScalarType> &) const {
    return std::nullopt;
  }
  at::ScalarType widened(at::ScalarType) const { return at::kFloat; }
  template <class T> const T &widened(const T &Given) const { return Given; }

  Tensor rounded(const Tensor &X, at::ScalarType To) const {
    return X.defined() ? X.to(To) : X;
  }
  Tensor rounded(Tensor X, Rounds, at::ScalarType) const {
    return Asked == at::kFloat ? X : rounded(X, *Found);
  }
  template <class... T>
  std::tuple<T...> rounded(std::tuple<T...> All, Rounds How,
                           at::ScalarType Others) const {
    std::apply(
        [&](Tensor &First, auto &...Rest) {
          First = rounded(First, *Found);
          if (How == Rounds::All || How == Rounds::Mixed)
            Others = *Found;
          if (How != Rounds::FirstOnly)
            ((Rest = rounded(Rest, Others)), ...);
        },
        All);
    return All;
  }
};

/// The dtype of results beside the first of a call in 16 bits: float32 if a
/// parameter is.
template <size_t... At, class Given>
at::ScalarType parametersOf(const Narrow &N, const Given &All) {
  bool Wide = false;
  const auto See = [&](const OptionalTensor &X) {
    Wide = Wide || (X && X->defined() && X->scalar_type() == at::kFloat);
  };
  (See(std::get<At>(All)), ...);
  return Wide ? at::kFloat : *N.Found;
}

/// A kernel for calls of \p Type. \p Take gets the place, the contract and the
/// arguments. It returns the result, or nothing for calls that go on to Python.
template <class Type, auto Take, Rounds How, size_t... Parameters>
struct Kernel;

template <class R, class... A, auto Take, Rounds How, size_t... Parameters>
struct Kernel<R(A...), Take, How, Parameters...> final : c10::OperatorKernel {
  explicit Kernel(Place P) : P(std::move(P)) {}

  R operator()(A... Given) {
    if (P.isStocks(Given...))
      return P.Stock.call<R, A...>(P.Op, P.Keys, std::forward<A>(Given)...);
    const Contract *C = InUse.load(std::memory_order_acquire);
    if (C && !ToPython) {
      if (auto Found = Take(P, *C, Given...)) {
        Taken.fetch_add(1, std::memory_order_relaxed);
        return *std::move(Found);
      }
      if constexpr (How != Rounds::Never)
        if (auto Found = narrowed(*C, Given...)) {
          Taken.fetch_add(1, std::memory_order_relaxed);
          return *std::move(Found);
        }
    }
    return P.Below.call<R, A...>(P.Op, P.Keys, std::forward<A>(Given)...);
  }

private:
  /// A call in 16 bits: float32 between two conversions.
  std::optional<R> narrowed(const Contract &C,
                            const std::decay_t<A> &...Given) {
    Narrow N;
    (N.see(Given), ...);
    if (!N.Found || N.Mixed ||
        (N.Wide && (How == Rounds::All || How == Rounds::Products)) ||
        ((How == Rounds::Products || How == Rounds::Mixed ||
          How == Rounds::FirstOnly) &&
         *N.Found == at::kBFloat16) ||
        (N.Given && *N.Given != *N.Found) ||
        (N.Asked && *N.Asked != *N.Found && *N.Asked != at::kFloat))
      return std::nullopt;
    const std::tuple<const std::decay_t<A> &...> All(Given...);
    if constexpr (How == Rounds::Weighted)
      if (!(isGiven(std::get<Parameters>(All)) && ...))
        return std::nullopt;
    if constexpr (How == Rounds::Statistics)
      if (N.is(std::get<3>(All)) || N.is(std::get<4>(All)))
        return std::nullopt;
    std::optional<R> Found = Take(P, C, N.widened(Given)...);
    if (!Found)
      return Found;
    return N.rounded(*std::move(Found), How,
                     parametersOf<Parameters...>(N, All));
  }

  const Place P;
};

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

/// Whether dimensions have names; later versions of torch have none.
template <class Impl> bool isNamed(const Impl &X) {
  if constexpr (requires { X.has_named_tensor_meta(); })
    return X.has_named_tensor_meta();
  else
    return false;
}

/// Whether memory holds the numbers of a tensor: some operators get zeros
/// without any, or numbers that are yet to be negated.
bool isPlain(const Tensor &X, at::ScalarType Dtype) {
  return X.scalar_type() == Dtype && X.is_cpu() &&
         X.layout() == c10::kStrided && !X._is_zerotensor() && !X.is_neg() &&
         !isNamed(*X.unsafeGetTensorImpl());
}

/// Whether tensors are what kernels take: float32 on the CPU, in any strides.
template <class... T> bool areOurs(const Tensor &X, const T &...Others) {
  if constexpr (sizeof...(Others) == 0)
    return isPlain(X, at::kFloat);
  else
    return isPlain(X, at::kFloat) && areOurs(Others...);
}

/// Whether tensors are what exact products take: bfloat16 on the CPU, in any
/// strides.
template <class... T> bool areExact(const T &...All) {
  return (isPlain(All, at::kBFloat16) && ...);
}

/// Whether a vector has one number for each of \p Count things, or is not
/// there.
bool isVector(const OptionalTensor &X, int64_t Count) {
  return !isGiven(X) || (areOurs(*X) && X->dim() == 1 && X->size(0) == Count);
}

/// A dense float32 tensor without values.
Tensor made(IntArrayRef Shape) {
  return at::detail::empty_cpu(Shape, at::kFloat, std::nullopt, std::nullopt,
                               std::nullopt, std::nullopt);
}

const float *read(const Tensor &X) {
  return static_cast<const float *>(X.const_data_ptr());
}
const uint16_t *readNarrow(const Tensor &X) {
  return static_cast<const uint16_t *>(X.const_data_ptr());
}
float *written(const Tensor &X) { return X.mutable_data_ptr<float>(); }

/// A tensor that may not be there, dense, and where its numbers are.
struct Dense {
  explicit Dense(const OptionalTensor &X) {
    if (isGiven(X))
      Kept = X->contiguous();
  }
  const float *read() const {
    return Kept.defined() ? static_cast<const float *>(Kept.const_data_ptr())
                          : nullptr;
  }
  Tensor Kept;
};

int64_t product(IntArrayRef Numbers) {
  return std::accumulate(Numbers.begin(), Numbers.end(), int64_t{1},
                         std::multiplies<>());
}

} // namespace

#endif
