//===- kernel_attention.h - Attention on the CPU --------------------------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDFTORCH_KERNEL_ATTENTION_H
#define UDFTORCH_KERNEL_ATTENTION_H

#include "kernel_norms.h"
#include "kernel_products.h"

#include <ATen/ops/empty_like.h>

namespace {

/// Matrices of heads of samples, of any strides.
struct Heads {
  explicit Heads(const Tensor &X, bool Turned = false)
      : Rows(X.size(Turned ? 3 : 2)), Columns(X.size(Turned ? 2 : 3)),
        RowStride(X.stride(Turned ? 3 : 2)),
        ColumnStride(X.stride(Turned ? 2 : 3)), X(X) {}
  int64_t Rows, Columns, RowStride, ColumnStride;
  const Tensor &X;
};

/// The product of each two matrices, dense and in float32: of two in float32 or
/// bfloat16, or of weights in float32 with values in bfloat16. Some heads of A
/// in succession may share one of B.
std::optional<Tensor> multiplyHeads(const Contract &C, const Heads &A,
                                    const Heads &B) {
  const int64_t Samples = A.X.size(0), Count = A.X.size(1);
  const int64_t Sharing = Count / B.X.size(1);
  Tensor Y = made({Samples, Count, A.Rows, B.Columns});
  const Threads T = C.threads("aten::bmm");
  const auto Run = [&](int64_t Matrices, int64_t BStep, int64_t Sample,
                       int64_t Head) {
    const int64_t ToA = Sample * A.X.stride(0) + Head * A.X.stride(1);
    const int64_t ToB = Sample * B.X.stride(0) + Head / Sharing * B.X.stride(1);
    const auto With = [&](auto *Function, const auto *Left, const auto *Right) {
      return !Function(
          Matrices, A.Rows, B.Columns, A.Columns, Left + ToA, A.X.stride(1),
          A.RowStride, A.ColumnStride, Right + ToB, BStep, B.RowStride,
          B.ColumnStride,
          written(Y) + (Sample * Count + Head) * A.Rows * B.Columns, &T);
    };
    if (B.X.scalar_type() == at::kFloat)
      return With(C.fast_bmm, read(A.X), read(B.X));
    if (A.X.scalar_type() == at::kFloat)
      return With(C.fast_exact_weighted, read(A.X), readNarrow(B.X));
    return With(C.fast_exact_bmm, readNarrow(A.X), readNarrow(B.X));
  };
  const auto IsEven = [&](const Tensor &X) {
    return X.stride(0) == X.stride(1) * Count;
  };
  bool Done = true;
  // One batch, if all its matrices are equally far apart.
  if (Sharing == 1 && IsEven(A.X) && IsEven(B.X))
    Done = Run(Samples * Count, B.X.stride(1), 0, 0);
  else
    for (int64_t I = 0; I < Samples; ++I)
      if (Sharing == 1)
        Done = Done && Run(Count, B.X.stride(1), I, 0);
      else
        for (int64_t H = 0; H < Count; H += Sharing)
          Done = Done && Run(Sharing, 0, I, H);
  return Done ? std::optional(Y) : std::nullopt;
}

/// Whether a call has results, and no dropout inside of it.
bool isAttention(const Tensor &Q, const Tensor &K, const Tensor &V,
                 double Dropout, const OptionalTensor &Mask, bool Causal) {
  return areFactors(Q, K, V) && Dropout == 0 && Q.dim() == 4 && K.dim() == 4 &&
         V.dim() == 4 && Q.numel() && K.numel() && V.numel() &&
         Q.size(0) == K.size(0) && Q.size(1) % K.size(1) == 0 &&
         K.sizes().slice(0, 3) == V.sizes().slice(0, 3) &&
         K.size(3) == V.size(3) && Q.size(3) == K.size(3) &&
         !(isGiven(Mask) && Causal);
}

/// Whether a mask lets each row see the first key. The sums of other rows begin
/// at the first key that they see: attention.py computes these.
bool seesFirst(const Tensor &Mask) {
  if (Mask.size(-1) < 2)
    return true;
  const Tensor First = Mask.select(-1, 0);
  const bool IsBool = First.scalar_type() == at::kBool;
  return (IsBool ? First : First.gt(-65504.0)).all().item<bool>();
}

/// Adds a mask to scores, or takes out what it does not allow; tells whether
/// it is one that stock accepts, too.
bool applyMask(Tensor &Scores, const Tensor &Mask, const Tensor &Q) {
  if ((Mask.dim() != 2 && Mask.dim() != 4) ||
      !spreads(Mask.sizes(), Scores.sizes()) || !seesFirst(Mask))
    return false;
  if (isPlain(Mask, at::kBool)) {
    Scores.masked_fill_(Mask.logical_not(), -INFINITY);
    return true;
  }
  if (!areOurs(Mask) && !areExact(Mask, Q))
    return false;
  Scores.add_(Mask);
  return true;
}

/// The weights of a call, and the logarithms of the sums of exponentials.
std::optional<std::tuple<Tensor, Tensor>>
weightsOf(const Contract &C, const Tensor &Q, const Tensor &K, bool Causal,
          const OptionalTensor &Mask, float Factor) {
  const Functions *F = functions();
  auto Scores = F ? multiplyHeads(C, Heads(Q), Heads(K, true)) : std::nullopt;
  if (!Scores)
    return std::nullopt;
  double Left = Factor;
  if (isGiven(Mask)) {
    Scores->mul_(Left);
    Left = 1;
    if (!applyMask(*Scores, *Mask, Q))
      return std::nullopt;
  }
  Tensor Logs = made(Scores->sizes().slice(0, 3));
  Rows S{Logs.numel(), K.size(2)};
  S.Channels = Causal ? Q.size(2) : 0;
  S.X = read(*Scores);
  S.Y = written(*Scores);
  S.Mean = written(Logs);
  S.Exp = F->Exp;
  S.Log = F->Log;
  S.Eps = Left;
  const Threads T = C.threads("aten::softmax");
  if (C.fast_attention_weights(&S, &T))
    return std::nullopt;
  return std::tuple(*Scores, Logs);
}

double factorOf(const Tensor &Q, std::optional<double> Scale) {
  return Scale ? *Scale : 1 / std::sqrt(static_cast<double>(Q.size(3)));
}

std::optional<std::tuple<Tensor, Tensor>>
attention(const Place &, const Contract &C, const Tensor &Q, const Tensor &K,
          const Tensor &V, double Dropout, bool Causal,
          const OptionalTensor &Mask, std::optional<double> Scale) {
  if (!isAttention(Q, K, V, Dropout, Mask, Causal))
    return std::nullopt;
  const auto Factor = static_cast<float>(factorOf(Q, Scale));
  auto Found = weightsOf(C, Q, K, Causal, Mask, Factor);
  if (!Found)
    return std::nullopt;
  const auto &[Weights, Logs] = *Found;
  auto Product = multiplyHeads(C, Heads(Weights), Heads(V));
  if (!Product)
    return std::nullopt;
  // The layouts are those of the stock kernel, which callers that view the
  // result rely on.
  Tensor Y = Q.strides() == Product->strides() && Q.scalar_type() == at::kFloat
                 ? *Product
                 : at::empty_like(Q).copy_(*Product);
  return std::tuple(Y, Logs.transpose(1, 2).contiguous().transpose(1, 2));
}

/// A dense tensor laid out as stock lays gradients out: by samples, places and
/// then heads.
Tensor byPlaces(const Tensor &X) {
  const int64_t H = X.size(1), L = X.size(2), E = X.size(3);
  if (X.numel() >= Many || H == 1 || L == 1) // there may be nothing to copy
    return X.transpose(1, 2).contiguous().transpose(1, 2);
  Tensor Y = at::detail::empty_strided_cpu(X.sizes(), {L * H * E, E, H * E, 1},
                                           at::kFloat);
  const float *From = read(X);
  float *To = written(Y);
  for (int64_t I = 0; I < X.size(0) * H; ++I)
    for (int64_t P = 0; P < L; ++P, From += E)
      std::copy_n(From, E, To + ((I / H * L + P) * H + I % H) * E);
  return Y;
}

std::optional<Three>
attentionBackward(const Place &, const Contract &C, const Tensor &Grad,
                  const Tensor &Q, const Tensor &K, const Tensor &V,
                  const Tensor &, const Tensor &, double Dropout, bool Causal,
                  const OptionalTensor &Mask, std::optional<double> Scale) {
  if (!isAttention(Q, K, V, Dropout, Mask, Causal) || !areFactors(Grad, Q) ||
      Grad.sizes() != Q.sizes())
    return std::nullopt;
  const auto Factor = static_cast<float>(factorOf(Q, Scale));
  auto Found = weightsOf(C, Q, K, Causal, Mask, Factor);
  if (!Found)
    return std::nullopt;
  const Tensor &Weights = std::get<0>(*Found);
  auto OfValue = multiplyHeads(C, Heads(Weights, true), Heads(Grad));
  auto OfWeights = multiplyHeads(C, Heads(Grad), Heads(V, true));
  if (!OfValue || !OfWeights)
    return std::nullopt;
  Rows S{Weights.numel() / Weights.size(3), Weights.size(3)};
  S.X = read(Weights);
  S.Grad = read(*OfWeights);
  S.Y = written(*OfWeights);
  const Threads T = C.threads("aten::softmax_backward");
  if (C.fast_softmax_backward(&S, &T))
    return std::nullopt;
  OfWeights->mul_(Factor);
  auto OfQuery = multiplyHeads(C, Heads(*OfWeights), Heads(K));
  auto OfKey = multiplyHeads(C, Heads(*OfWeights, true), Heads(Q));
  if (!OfQuery || !OfKey)
    return std::nullopt;
  // Heads that shared one head add up what they give it.
  const auto Laid = [&](Tensor X, const Tensor &Like) {
    if (X.size(1) != Like.size(1)) {
      Tensor Sums = made({X.size(0), Like.size(1), X.size(2), X.size(3)});
      sums(C, X.size(0) * Like.size(1), X.size(1) / Like.size(1),
           X.size(2) * X.size(3), read(X), written(Sums));
      X = Sums;
    }
    return rounded(byPlaces(X), Q);
  };
  return Three(Laid(*OfQuery, Q), Laid(*OfKey, K), Laid(*OfValue, V));
}

} // namespace

#endif
