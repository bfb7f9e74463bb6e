//===- kernel_sums.h - Sums, means, roots and losses on the CPU -----------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDFTORCH_KERNEL_SUMS_H
#define UDFTORCH_KERNEL_SUMS_H

#include "kernel_call.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <bitset>

namespace {

/// Sums over the middle one of three sizes of dense numbers.
void sums(const Contract &C, int64_t Outer, int64_t N, int64_t Inner,
          const float *X, float *Y) {
  const Threads T = C.threads("aten::sum");
  C.fast_sums(Outer, N, Inner, X, Y, &T);
}

constexpr size_t MostDims = 64;
using Dims = std::bitset<MostDims>;

/// The dimensions that are named, all for none; nothing if one is named twice
/// or does not exist.
std::optional<Dims> chosen(const Tensor &X, at::OptionalIntArrayRef Named) {
  const int64_t Rank = X.dim();
  Dims Found;
  if (!Rank || Rank > static_cast<int64_t>(MostDims))
    return std::nullopt;
  if (!Named || Named->empty()) {
    for (int64_t D = 0; D < Rank; ++D)
      Found.set(D);
    return Found;
  }
  for (int64_t D : *Named) {
    if (D < -Rank || D >= Rank)
      return std::nullopt;
    D += D < 0 ? Rank : 0;
    if (Found[D])
      return std::nullopt;
    Found.set(D);
  }
  return Found;
}

/// Sums over dimensions, which form one sequence in their order; \p Count gets
/// the number of terms of each.
Tensor over(const Contract &C, const Tensor &X, const Dims &Over, bool Keep) {
  Sizes Shape, Kept;
  int64_t First = X.dim(), Last = 0;
  for (int64_t D = 0; D < X.dim(); ++D)
    if (Over[D]) {
      First = std::min(First, D);
      Last = D + 1;
      if (Keep)
        Shape.push_back(1);
    } else {
      Shape.push_back(X.size(D));
      Kept.push_back(D);
    }
  Tensor Y = made(Shape), Source = X;
  int64_t Outer = product(X.sizes().slice(0, First));
  int64_t N = product(X.sizes().slice(First, Last - First));
  int64_t Inner = product(X.sizes().slice(Last));
  if (Last - First != static_cast<int64_t>(Over.count())) {
    // They are apart: they come last in a copy.
    for (int64_t D = First; D < Last; ++D)
      if (Over[D])
        Kept.push_back(D);
    Source = X.permute(Kept);
    Outer = Y.numel();
    N = 1;
    for (int64_t D = First; D < Last; ++D)
      N *= Over[D] ? X.size(D) : 1;
    Inner = 1;
  }
  Source = Source.contiguous();
  sums(C, Outer, N, Inner, read(Source), written(Y));
  return Y;
}

bool isFloat32(std::optional<at::ScalarType> Asked) {
  return !Asked || *Asked == at::kFloat;
}

void divide(Tensor &Y, double By) {
  const auto Divisor = static_cast<float>(By);
  float *Numbers = written(Y);
  for (int64_t I = 0; I < Y.numel(); ++I)
    Numbers[I] /= Divisor;
}

template <bool Mean>
std::optional<Tensor> sumOver(const Contract &C, const Tensor &X,
                              at::OptionalIntArrayRef Named, bool Keep,
                              std::optional<at::ScalarType> Asked) {
  if (!areOurs(X) || !isFloat32(Asked))
    return std::nullopt;
  const auto Over = chosen(X, Named);
  if (!Over)
    return std::nullopt;
  Tensor Y = over(C, X, *Over, Keep);
  if (Mean && Y.numel())
    divide(Y, static_cast<double>(X.numel()) / static_cast<double>(Y.numel()));
  return Y;
}

template <bool Mean>
std::optional<Tensor> sumDims(const Place &, const Contract &C, const Tensor &X,
                              at::OptionalIntArrayRef Named, bool Keep,
                              std::optional<at::ScalarType> Asked) {
  return sumOver<Mean>(C, X, Named, Keep, Asked);
}

template <bool Mean>
std::optional<Tensor> sumAll(const Place &, const Contract &C, const Tensor &X,
                             std::optional<at::ScalarType> Asked) {
  return sumOver<Mean>(C, X, std::nullopt, false, Asked);
}

//===----------------------------------------------------------------------===//
// Roots
//===----------------------------------------------------------------------===//

void roots(const Contract &C, const Tensor &X, Tensor &Y) {
  const Threads T = C.threads("aten::sqrt");
  C.fast_roots(X.numel(), read(X), written(Y), &T);
}

/// Whether the elements of a tensor fill its memory, in the order of strides.
bool isFilled(const Tensor &X) {
  return areOurs(X) && X.is_non_overlapping_and_dense();
}

Tensor madeLike(const Tensor &X) {
  return at::detail::empty_strided_cpu(X.sizes(), X.strides(), at::kFloat);
}

std::optional<Tensor> root(const Place &, const Contract &C, const Tensor &X) {
  if (!isFilled(X))
    return std::nullopt;
  Tensor Y = madeLike(X);
  roots(C, X, Y);
  return Y;
}

Tensor *rootInPlace(const Place &, const Contract &C, Tensor &X) {
  if (!isFilled(X))
    return nullptr;
  roots(C, X, X);
  return &X;
}

Tensor *rootOut(const Place &, const Contract &C, const Tensor &X, Tensor &Y) {
  if (!isFilled(X) || !isFilled(Y) || X.sizes() != Y.sizes() ||
      X.strides() != Y.strides() ||
      (X.storage().data() == Y.storage().data() &&
       X.storage_offset() != Y.storage_offset()))
    return nullptr;
  roots(C, X, Y);
  return &Y;
}

/// Powers that torch computes by products and a quotient, the same everywhere.
bool isByProducts(double Exponent) {
  for (double Each : {0.0, 1.0, 2.0, 3.0, -1.0, -2.0})
    if (Exponent == Each)
      return true;
  return false;
}

std::optional<Tensor> power(const Place &P, const Contract &C, const Tensor &X,
                            const c10::Scalar &Exponent) {
  if (Exponent.isSymbolic() || Exponent.isComplex())
    return std::nullopt;
  const double By = Exponent.toDouble();
  if (areOurs(X) && isByProducts(By))
    return P.Stock.call<Tensor, const Tensor &, const c10::Scalar &>(
        P.Op, P.Keys, X, Exponent);
  if (std::abs(By) != 0.5 || !isFilled(X))
    return std::nullopt;
  Tensor Y = madeLike(X);
  roots(C, X, Y);
  float *Numbers = written(Y);
  if (By < 0)
    for (int64_t I = 0; I < Y.numel(); ++I)
      Numbers[I] = 1.0f / Numbers[I];
  return Y;
}

Tensor *powerInPlace(const Place &P, const Contract &, Tensor &X,
                     const c10::Scalar &Exponent) {
  if (Exponent.isSymbolic() || Exponent.isComplex() || !areOurs(X) ||
      !isByProducts(Exponent.toDouble()))
    return nullptr;
  P.Stock.call<Tensor &, Tensor &, const c10::Scalar &>(P.Op, P.Keys, X,
                                                        Exponent);
  return &X;
}

//===----------------------------------------------------------------------===//
// Variances, norms and running sums
//===----------------------------------------------------------------------===//

/// Variances and means; nothing where there are no degrees of freedom, which
/// stock warns of.
std::optional<std::tuple<Tensor, Tensor>>
spread(const Contract &C, const Tensor &X, at::OptionalIntArrayRef Named,
       const std::optional<c10::Scalar> &Correction, bool Keep) {
  const auto Over = areOurs(X) && X.numel() ? chosen(X, Named) : std::nullopt;
  if (!Over ||
      (Correction && (Correction->isSymbolic() || Correction->isComplex())))
    return std::nullopt;
  Tensor Mean = over(C, X, *Over, true);
  const double Count =
      static_cast<double>(X.numel()) / static_cast<double>(Mean.numel());
  const double Free = Count - (Correction ? Correction->toDouble() : 1);
  if (!(Free > 0))
    return std::nullopt;
  divide(Mean, Count);
  const Tensor D = at::sub(X, Mean);
  Tensor Var = over(C, at::mul(D, D), *Over, Keep);
  divide(Var, Free);
  return std::tuple(Var, Keep ? Mean : Mean.view(Var.sizes()));
}

template <bool Root>
std::optional<Tensor> variance(const Place &, const Contract &C,
                               const Tensor &X, at::OptionalIntArrayRef Named,
                               const std::optional<c10::Scalar> &Correction,
                               bool Keep) {
  auto Found = spread(C, X, Named, Correction, Keep);
  if (!Found)
    return std::nullopt;
  Tensor &Y = std::get<0>(*Found);
  if (Root)
    roots(C, Y, Y);
  return Y;
}

template <bool Root>
std::optional<std::tuple<Tensor, Tensor>>
varianceAndMean(const Place &, const Contract &C, const Tensor &X,
                at::OptionalIntArrayRef Named,
                const std::optional<c10::Scalar> &Correction, bool Keep) {
  auto Found = spread(C, X, Named, Correction, Keep);
  if (Found && Root)
    roots(C, std::get<0>(*Found), std::get<0>(*Found));
  return Found;
}

/// The root of a sum of squares, or a sum of magnitudes.
std::optional<Tensor> vectorNorm(const Place &, const Contract &C,
                                 const Tensor &X, const c10::Scalar &Order,
                                 at::OptionalIntArrayRef Named, bool Keep,
                                 std::optional<at::ScalarType> Asked) {
  if (!areOurs(X) || !X.numel() || !isFloat32(Asked) || Order.isSymbolic() ||
      Order.isComplex())
    return std::nullopt;
  const double Power = Order.toDouble();
  const auto Over = chosen(X, Named);
  if (!Over || (Power != 1 && Power != 2))
    return std::nullopt;
  if (Power == 1)
    return over(C, X.abs(), *Over, Keep);
  Tensor Y = over(C, at::mul(X, X), *Over, Keep);
  roots(C, Y, Y);
  return Y;
}

std::optional<Tensor> cumsum(const Place &, const Contract &C, const Tensor &X,
                             int64_t D, std::optional<at::ScalarType> Asked) {
  if (!areOurs(X) || !X.numel() || !X.dim() || !isFloat32(Asked) ||
      D < -X.dim() || D >= X.dim())
    return std::nullopt;
  D += D < 0 ? X.dim() : 0;
  const Tensor Source = X.contiguous();
  Tensor Y = made(X.sizes());
  const Threads T = C.threads("aten::cumsum");
  C.fast_prefixes(product(X.sizes().slice(0, D)), X.size(D),
                  product(X.sizes().slice(D + 1)), read(Source), written(Y),
                  &T);
  return Y;
}

//===----------------------------------------------------------------------===//
// Losses
//===----------------------------------------------------------------------===//

/// The squared error.
std::optional<Tensor> mseLoss(const Place &, const Contract &C, const Tensor &X,
                              const Tensor &Target, int64_t Reduction) {
  if (!areOurs(X, Target) || X.sizes() != Target.sizes())
    return std::nullopt;
  Tensor D = at::sub(X, Target);
  D = at::mul(D, D);
  if (!Reduction)
    return D;
  D = D.contiguous();
  Tensor Y = made({});
  sums(C, 1, D.numel(), 1, read(D), written(Y));
  if (Reduction == 1)
    divide(Y, static_cast<double>(D.numel()));
  return Y;
}

/// The negative log-likelihood of rows, of which there are \p Positions in each
/// of some samples, and the total weight.
std::optional<std::tuple<Tensor, Tensor>>
likelihood(const Contract &C, const Tensor &X, const Tensor &Target,
           const OptionalTensor &Weight, int64_t Reduction, int64_t Ignored,
           int64_t Samples, int64_t Classes, int64_t Positions) {
  const int64_t N = Samples * Positions;
  if (!isPlain(Target, at::kLong) || !X.numel() || !isVector(Weight, Classes))
    return std::nullopt;
  const Tensor Rows = X.contiguous(), Labels = Target.contiguous();
  const Dense Weights(Weight);
  Tensor Losses = made(Target.sizes()), Shares = made({N});
  const float *Numbers = read(Rows);
  const auto *Label = static_cast<const int64_t *>(Labels.const_data_ptr());
  float *Loss = written(Losses), *Share = written(Shares);
  for (int64_t I = 0; I < N; ++I) {
    Loss[I] = Share[I] = 0.0f;
    if (Label[I] == Ignored)
      continue;
    if (Label[I] < 0 || Label[I] >= Classes)
      return std::nullopt;
    const float Of = Numbers[(I / Positions * Classes + Label[I]) * Positions +
                             I % Positions];
    Share[I] = Weights.read() ? Weights.read()[Label[I]] : 1.0f;
    Loss[I] = -Of * Share[I];
  }
  Tensor Total = made({});
  *written(Total) = 0.0f;
  if (!Reduction)
    return std::tuple(Losses, Total);
  Tensor All = made({});
  sums(C, 1, N, 1, Share, written(Total));
  sums(C, 1, N, 1, Loss, written(All));
  if (Reduction == 1)
    *written(All) /= *read(Total);
  return std::tuple(All, Total);
}

std::optional<std::tuple<Tensor, Tensor>>
nllLoss(const Place &, const Contract &C, const Tensor &X, const Tensor &Target,
        const OptionalTensor &Weight, int64_t Reduction, c10::SymInt Ignored) {
  const auto Label = Ignored.maybe_as_int();
  if (!areOurs(X) || !Label || X.dim() < 1 || X.dim() > 2 ||
      Target.sizes() != X.sizes().slice(0, X.dim() - 1))
    return std::nullopt;
  return likelihood(C, X, Target, Weight, Reduction, *Label, Target.numel(),
                    X.size(-1), 1);
}

std::optional<std::tuple<Tensor, Tensor>>
nllLoss2d(const Place &, const Contract &C, const Tensor &X,
          const Tensor &Target, const OptionalTensor &Weight, int64_t Reduction,
          c10::SymInt Ignored) {
  const auto Label = Ignored.maybe_as_int();
  if (!areOurs(X) || !Label || X.dim() != 4 || Target.dim() != 3 ||
      Target.size(0) != X.size(0) || Target.size(1) != X.size(2) ||
      Target.size(2) != X.size(3))
    return std::nullopt;
  return likelihood(C, X, Target, Weight, Reduction, *Label, X.size(0),
                    X.size(1), X.size(2) * X.size(3));
}

//===----------------------------------------------------------------------===//
// Scattered sums
//===----------------------------------------------------------------------===//

/// Writes where the terms of each row stand, in their order, by counting them;
/// terms of rows that do not exist, and of \p Left, are left out.
template <class Index> struct Groups {
  Groups(const Index *Row, int64_t Terms, int64_t Rows, int64_t Left) {
    c10::SmallVector<int64_t, 256> Ends(Rows + 1, 0);
    const auto IsIn = [&](Index R) { return R >= 0 && R < Rows && R != Left; };
    for (int64_t I = 0; I < Terms; ++I)
      if (IsIn(Row[I]))
        ++Ends[Row[I] + 1];
    for (int64_t R = 0; R < Rows; ++R) {
      if (Ends[R + 1]) {
        Start.push_back(Ends[R]);
        Named.push_back(R);
      }
      Ends[R + 1] += Ends[R];
    }
    Start.push_back(Ends[Rows]);
    Term.resize(Ends[Rows]);
    for (int64_t I = 0; I < Terms; ++I)
      if (IsIn(Row[I]))
        Term[Ends[Row[I]]++] = I;
  }
  c10::SmallVector<int64_t, 256> Start, Term, Named;
};

template <class Index>
void scatter(const Contract &C, const Tensor &Rows, int64_t Left,
             const Tensor &X, Tensor &Y) {
  const int64_t Width = Y.size(1);
  const Groups<Index> G(static_cast<const Index *>(Rows.const_data_ptr()),
                        Rows.numel(), Y.size(0), Left);
  const Threads T = C.threads("aten::index_add");
  C.fast_scatter(static_cast<int64_t>(G.Named.size()), Width, G.Start.data(),
                 G.Term.data(), G.Named.data(), 1, read(X), written(Y), &T);
}

std::optional<Tensor> embeddingBackward(const Place &, const Contract &C,
                                        const Tensor &Grad,
                                        const Tensor &Indices,
                                        c10::SymInt Count, c10::SymInt Padding,
                                        bool ByFrequency) {
  const auto Rows = Count.maybe_as_int(), Left = Padding.maybe_as_int();
  const bool IsLong = isPlain(Indices, at::kLong);
  if (!areOurs(Grad) || !(IsLong || isPlain(Indices, at::kInt)) || !Rows ||
      !Left || ByFrequency || !Grad.dim() || !Grad.numel() ||
      Grad.sizes().slice(0, Grad.dim() - 1) != Indices.sizes())
    return std::nullopt;
  Tensor Y = made({*Rows, Grad.size(-1)});
  std::fill_n(written(Y), Y.numel(), 0.0f);
  const Tensor Terms = Grad.contiguous(), Named = Indices.contiguous();
  const int64_t Unread = *Left < 0 ? -1 : *Left;
  if (IsLong)
    scatter<int64_t>(C, Named, Unread, Terms, Y);
  else
    scatter<int32_t>(C, Named, Unread, Terms, Y);
  return Y;
}

//===----------------------------------------------------------------------===//
// Random numbers
//===----------------------------------------------------------------------===//

/// Ones where a fraction is below the probability, and zeros.
Tensor *bernoulli(const Place &, const Contract &C, Tensor &X, double P,
                  std::optional<at::Generator> Source) {
  if (!areOurs(X) || !X.is_contiguous() || !(P >= 0 && P <= 1))
    return nullptr;
  Tensor Key = at::detail::empty_cpu({}, at::kLong, std::nullopt, std::nullopt,
                                     std::nullopt, std::nullopt);
  Key.random_(std::move(Source));
  const auto Word = static_cast<uint64_t>(
      *static_cast<const int64_t *>(Key.const_data_ptr()));
  const Threads T = C.threads("aten::random_");
  float *Y = written(X);
  auto *Words = reinterpret_cast<uint32_t *>(Y);
  C.random_words(X.numel(), Word, Words, &T);
  const auto Below = static_cast<float>(P);
  for (int64_t I = 0; I < X.numel(); ++I) {
    uint32_t Bits;
    std::memcpy(&Bits, Y + I, sizeof Bits);
    Y[I] = static_cast<float>(Bits >> 8) * 0x1p-24f < Below ? 1.0f : 0.0f;
  }
  return &X;
}

} // namespace

#endif
