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

/// The product of each two matrices, dense. Some heads of A in succession may
/// share one of B.
std::optional<Tensor> multiplyHeads(const Contract &C, const Heads &A,
                                    const Heads &B) {
  const int64_t Samples = A.X.size(0), Count = A.X.size(1);
  const int64_t Sharing = Count / B.X.size(1);
  Tensor Y = made({Samples, Count, A.Rows, B.Columns});
  const Threads T = C.threads("aten::bmm");
  const auto Run = [&](int64_t Matrices, int64_t BStep, int64_t Sample,
                       int64_t Head) {
    return !C.fast_bmm(
        Matrices, A.Rows, B.Columns, A.Columns,
        read(A.X) + Sample * A.X.stride(0) + Head * A.X.stride(1),
        A.X.stride(1), A.RowStride, A.ColumnStride,
        read(B.X) + Sample * B.X.stride(0) + Head / Sharing * B.X.stride(1),
        BStep, B.RowStride, B.ColumnStride,
        written(Y) + (Sample * Count + Head) * A.Rows * B.Columns, &T);
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

/// Whether a mask is one that stock accepts, and lets each row see the first
/// key.
bool takesMask(const Tensor &Mask, IntArrayRef Scores) {
  return (Mask.dim() == 2 || Mask.dim() == 4) &&
         spreads(Mask.sizes(), Scores) && seesFirst(Mask);
}

/// Adds a mask to scores, or takes out what it does not allow; tells whether
/// it is one that kernels take.
bool applyMask(Tensor &Scores, const Tensor &Mask) {
  if (!takesMask(Mask, Scores.sizes()))
    return false;
  if (isPlain(Mask, at::kBool)) {
    Scores.masked_fill_(Mask.logical_not(), -INFINITY);
    return true;
  }
  if (!areOurs(Mask))
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
    if (!applyMask(*Scores, *Mask))
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

//===----------------------------------------------------------------------===//
// In bfloat16
//===----------------------------------------------------------------------===//

HeadsOf headsOf(const Tensor &X) {
  return {readNarrow(X), X.stride(0), X.stride(1), X.stride(2), X.stride(3)};
}

/// Describes a call, but for its results; nothing if Python has its mask.
std::optional<ExactAttention> exactAttention(const Tensor &Q, const Tensor &K,
                                             const Tensor &V, bool Causal,
                                             const OptionalTensor &Mask,
                                             double Factor) {
  const Functions *F = functions();
  if (!F)
    return std::nullopt;
  ExactAttention A{Q.size(0), Q.size(1), K.size(1),
                   Q.size(2), K.size(2), Q.size(3)};
  A.Q = headsOf(Q);
  A.K = headsOf(K);
  A.V = headsOf(V);
  A.Causal = Causal;
  A.Factor = Factor;
  A.Exp = F->Exp;
  A.Log = F->Log;
  if (!isGiven(Mask))
    return A;
  const Sizes Scores{A.Samples, A.Heads, A.Queries, A.Keys};
  A.MaskKind = isPlain(*Mask, at::kBool) ? 1
               : areOurs(*Mask)          ? 2
               : areExact(*Mask)         ? 3
                                         : 0;
  if (!A.MaskKind || !takesMask(*Mask, Scores))
    return std::nullopt;
  const Tensor Spread = Mask->expand(Scores);
  A.Mask = Spread.const_data_ptr();
  A.Sample = Spread.stride(0);
  A.Head = Spread.stride(1);
  A.Row = Spread.stride(2);
  A.Column = Spread.stride(3);
  return A;
}

std::optional<std::tuple<Tensor, Tensor>> attentionForward(const Contract &C,
                                                           ExactAttention A) {
  Tensor Y = made({A.Samples, A.Heads, A.Queries, A.Size});
  Tensor Logs = made({A.Samples, A.Heads, A.Queries});
  A.Out = written(Y);
  A.Logs = written(Logs);
  const Threads T = C.threads("aten::bmm");
  if (C.fast_exact_attention(&A, &T))
    return std::nullopt;
  return std::tuple(Y, Logs);
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

std::optional<std::tuple<Tensor, Tensor>>
attention(const Place &, const Contract &C, const Tensor &Q, const Tensor &K,
          const Tensor &V, double Dropout, bool Causal,
          const OptionalTensor &Mask, std::optional<double> Scale) {
  if (!isAttention(Q, K, V, Dropout, Mask, Causal))
    return std::nullopt;
  const auto Factor = static_cast<float>(factorOf(Q, Scale));
  std::optional<std::tuple<Tensor, Tensor>> Found;
  if (areExact(Q)) {
    if (const auto A = exactAttention(Q, K, V, Causal, Mask, Factor))
      Found = attentionForward(C, *A);
  } else if ((Found = weightsOf(C, Q, K, Causal, Mask, Factor))) {
    auto Product = multiplyHeads(C, Heads(std::get<0>(*Found)), Heads(V));
    if (!Product)
      return std::nullopt;
    std::get<0>(*Found) = *Product;
  }
  if (!Found)
    return std::nullopt;
  const auto &[Product, Logs] = *Found;
  // The layouts are those of the stock kernel, which callers that view the
  // result rely on.
  Tensor Y = Q.strides() == Product.strides() && !areExact(Q)
                 ? Product
                 : at::empty_like(Q).copy_(Product);
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
  // Heads that shared one head add up what they give it.
  const auto Laid = [&](Tensor X, const Tensor &Like) {
    if (X.size(1) != Like.size(1)) {
      Tensor Sums = made({X.size(0), Like.size(1), X.size(2), X.size(3)});
      sums(C, X.size(0) * Like.size(1), X.size(1) / Like.size(1),
           X.size(2) * X.size(3), read(X), written(Sums));
      X = Sums;
    }
    return rounded(byPlaces(X), Like);
  };
  if (areExact(Q)) {
    auto A = exactAttention(Q, K, V, Causal, Mask, Factor);
    if (!A)
      return std::nullopt;
    A->Grad = headsOf(Grad);
    Tensor OfQuery = made(Q.sizes());
    Tensor OfKey = made({A->Samples, A->Heads, A->Keys, A->Size});
    Tensor OfValue = made(OfKey.sizes());
    A->OfQuery = written(OfQuery);
    A->OfKey = written(OfKey);
    A->OfValue = written(OfValue);
    const Threads T = C.threads("aten::bmm");
    if (C.fast_exact_attention_backward(&*A, &T))
      return std::nullopt;
    return Three(Laid(OfQuery, Q), Laid(OfKey, K), Laid(OfValue, V));
  }
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
  return Three(Laid(*OfQuery, Q), Laid(*OfKey, K), Laid(*OfValue, V));
}

} // namespace

#endif
