//===- kernel_norms.h - Norms and softmax on the CPU ----------------------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDFTORCH_KERNEL_NORMS_H
#define UDFTORCH_KERNEL_NORMS_H

#include "kernel_sums.h"

#include <cmath>

namespace {

using Three = std::tuple<Tensor, Tensor, Tensor>;

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

/// Whether a dimension is the last one of a tensor with elements.
bool isLast(const Tensor &X, int64_t D) {
  return X.dim() && X.numel() && (D == -1 || D == X.dim() - 1);
}

std::optional<Tensor> byRows(const Contract &C, RowsFunction *Function,
                             const char *Operator, const Tensor &X,
                             const Tensor *Grad) {
  const Functions *F = functions();
  if (!F)
    return std::nullopt;
  const Tensor Source = X.contiguous();
  const Tensor Gradient = Grad ? Grad->contiguous() : Tensor();
  Tensor Y = made(X.sizes());
  Rows S{X.numel() / X.size(-1), X.size(-1)};
  S.X = read(Source);
  S.Grad = Grad ? read(Gradient) : nullptr;
  S.Y = written(Y);
  S.Exp = F->Exp;
  S.Log = F->Log;
  const Threads T = C.threads(Operator);
  if (Function(&S, &T))
    return std::nullopt;
  return Y;
}

std::optional<Tensor> softmax(const Place &, const Contract &C, const Tensor &X,
                              int64_t D, bool Widens) {
  if (!areOurs(X) || Widens || !isLast(X, D))
    return std::nullopt;
  return byRows(C, C.fast_softmax, "aten::softmax", X, nullptr);
}

std::optional<Tensor> logSoftmax(const Place &, const Contract &C,
                                 const Tensor &X, int64_t D, bool Widens) {
  if (!areOurs(X) || Widens || !isLast(X, D))
    return std::nullopt;
  return byRows(C, C.fast_log_softmax, "aten::log_softmax", X, nullptr);
}

std::optional<Tensor> softmaxBackward(const Place &, const Contract &C,
                                      const Tensor &Grad, const Tensor &Y,
                                      int64_t D, at::ScalarType Dtype) {
  if (!areOurs(Grad, Y) || Dtype != at::kFloat || !isLast(Y, D) ||
      Grad.sizes() != Y.sizes())
    return std::nullopt;
  return byRows(C, C.fast_softmax_backward, "aten::softmax_backward", Y, &Grad);
}

std::optional<Tensor> logSoftmaxBackward(const Place &, const Contract &C,
                                         const Tensor &Grad, const Tensor &Y,
                                         int64_t D, at::ScalarType Dtype) {
  if (!areOurs(Grad, Y) || Dtype != at::kFloat || !isLast(Y, D) ||
      Grad.sizes() != Y.sizes())
    return std::nullopt;
  return byRows(C, C.fast_log_softmax_backward, "aten::log_softmax_backward", Y,
                &Grad);
}

//===----------------------------------------------------------------------===//
// Layer norm
//===----------------------------------------------------------------------===//

/// Whether a weight has a shape, or is not there.
bool hasShape(const OptionalTensor &X, IntArrayRef Shape) {
  return !isGiven(X) || (areOurs(*X) && X->sizes() == Shape);
}

/// Whether the last dimensions of a tensor with elements have a shape.
bool endsIn(const Tensor &X, IntArrayRef Shape) {
  const auto Rank = static_cast<int64_t>(Shape.size());
  return X.numel() && Rank && X.dim() >= Rank &&
         X.sizes().slice(X.dim() - Rank) == Shape;
}

std::optional<Three> layerNorm(const Place &, const Contract &C,
                               const Tensor &X, c10::SymIntArrayRef Normalized,
                               const OptionalTensor &Weight,
                               const OptionalTensor &Bias, double Eps) {
  const auto Shape = c10::asIntArrayRefSlowOpt(Normalized);
  if (!areOurs(X) || !Shape || !endsIn(X, *Shape) ||
      !hasShape(Weight, *Shape) || !hasShape(Bias, *Shape))
    return std::nullopt;
  const Tensor Source = X.contiguous();
  const Dense W(Weight), B(Bias);
  const int64_t N = product(*Shape);
  Sizes Lead(X.sizes().begin(), X.sizes().end());
  std::fill(Lead.end() - static_cast<int64_t>(Shape->size()), Lead.end(), 1);
  Tensor Y = made(X.sizes()), Mean = made(Lead), Rstd = made(Lead);
  Rows S{X.numel() / N, N};
  S.X = read(Source);
  S.Weight = W.read();
  S.Bias = B.read();
  S.Mean = written(Mean);
  S.Rstd = written(Rstd);
  S.Y = written(Y);
  S.Eps = Eps;
  const Threads T = C.threads("aten::layer_norm");
  if (C.fast_layer_norm(&S, &T))
    return std::nullopt;
  return Three(Y, Mean, Rstd);
}

std::optional<Three> layerNormBackward(const Place &, const Contract &C,
                                       const Tensor &Grad, const Tensor &X,
                                       c10::SymIntArrayRef Normalized,
                                       const Tensor &Mean, const Tensor &Rstd,
                                       const OptionalTensor &Weight,
                                       const OptionalTensor &Bias,
                                       std::array<bool, 3> Wanted) {
  const auto Shape = c10::asIntArrayRefSlowOpt(Normalized);
  if (!areOurs(Grad, X, Mean, Rstd) || !Shape || !endsIn(X, *Shape) ||
      Grad.sizes() != X.sizes() || !hasShape(Weight, *Shape) ||
      !hasShape(Bias, *Shape))
    return std::nullopt;
  const int64_t N = product(*Shape), Count = X.numel() / N;
  if (Mean.numel() != Count || Rstd.numel() != Count)
    return std::nullopt;
  const Tensor Gradient = Grad.contiguous(), Source = X.contiguous();
  const Tensor Means = Mean.contiguous(), Rstds = Rstd.contiguous();
  const Dense W(Weight);
  const bool OfWeight = Wanted[1] && isGiven(Weight);
  Tensor Y, Products, Sums, Biases;
  Rows S{Count, N};
  S.X = read(Source);
  S.Grad = read(Gradient);
  S.Weight = W.read();
  S.Mean = const_cast<float *>(read(Means));
  S.Rstd = const_cast<float *>(read(Rstds));
  if (Wanted[0]) {
    Y = made(X.sizes());
    S.Y = written(Y);
  }
  if (OfWeight) {
    Products = made({Count, N});
    S.Second = written(Products);
  }
  const Threads T = C.threads("aten::layer_norm_backward");
  if ((S.Y || S.Second) && C.fast_layer_norm_backward(&S, &T))
    return std::nullopt;
  if (OfWeight) {
    Sums = made(*Shape);
    sums(C, 1, Count, N, read(Products), written(Sums));
  }
  if (Wanted[2] && isGiven(Bias)) {
    Biases = made(*Shape);
    sums(C, 1, Count, N, read(Gradient), written(Biases));
  }
  return Three(Y, Sums, Biases);
}

//===----------------------------------------------------------------------===//
// Batch norm
//===----------------------------------------------------------------------===//

/// Loops over channels are slow if these have few positions, and many samples.
constexpr int64_t LeastPositions = 8, MostWithFewer = 1 << 16;

/// Whether the positions of channels lie side by side, and there are enough.
bool isInLoops(const Tensor &X) {
  return X.dim() >= 2 && X.numel() && X.is_contiguous() &&
         (X.numel() <= MostWithFewer ||
          product(X.sizes().slice(2)) >= LeastPositions);
}

Rows channelsOf(const Tensor &X) {
  Rows S{X.size(0) * X.size(1), product(X.sizes().slice(2))};
  S.Channels = X.size(1);
  S.X = read(X);
  return S;
}

/// What follows a running statistic: it keeps a part, and takes one of new
/// numbers, which are divided first.
void follow(const OptionalTensor &Running, const float *New, float Divisor,
            double Momentum) {
  if (!isGiven(Running))
    return;
  const auto Keep = static_cast<float>(1 - Momentum);
  const auto Take = static_cast<float>(Momentum);
  float *Y = Running->mutable_data_ptr<float>();
  for (int64_t I = 0; I < Running->numel(); ++I) {
    const float Kept = Y[I] * Keep;
    const float Taken = New[I] / Divisor * Take;
    Y[I] = Kept + Taken;
  }
}

bool isDenseVector(const OptionalTensor &X, int64_t Count) {
  return isVector(X, Count) && (!isGiven(X) || X->is_contiguous());
}

std::optional<Three> normalized(const Contract &C, const Tensor &X,
                                const OptionalTensor &Weight,
                                const OptionalTensor &Bias,
                                const OptionalTensor &RunningMean,
                                const OptionalTensor &RunningVar, bool Training,
                                double Momentum, double Eps) {
  if (!areOurs(X) || !isInLoops(X))
    return std::nullopt;
  const int64_t Channels = X.size(1);
  const bool HasStatistics = isGiven(RunningMean) && isGiven(RunningVar);
  if (!isVector(Weight, Channels) || !isVector(Bias, Channels) ||
      !isDenseVector(RunningMean, Channels) ||
      !isDenseVector(RunningVar, Channels) || !(Training || HasStatistics))
    return std::nullopt;
  const Dense W(Weight), B(Bias);
  Tensor Y = made(X.sizes());
  Rows S = channelsOf(X);
  S.Weight = W.read();
  S.Bias = B.read();
  S.Y = written(Y);
  S.Eps = Eps;
  const Threads T = C.threads("aten::batch_norm");
  if (!Training) {
    Tensor Rstd = made({Channels});
    const float *Var = read(*RunningVar);
    const auto Added = static_cast<float>(Eps);
    for (int64_t I = 0; I < Channels; ++I)
      written(Rstd)[I] = 1.0f / std::sqrt(Var[I] + Added);
    S.Mean = const_cast<float *>(read(*RunningMean));
    S.Rstd = written(Rstd);
    if (C.fast_batch_norm_inference(&S, &T))
      return std::nullopt;
    return Three(Y, made({0}), made({0}));
  }
  Tensor Mean = made({Channels}), Rstd = made({Channels}),
         Squares = made({Channels});
  S.Mean = written(Mean);
  S.Rstd = written(Rstd);
  S.Second = written(Squares);
  if (C.fast_batch_norm(&S, &T))
    return std::nullopt;
  follow(RunningMean, read(Mean), 1.0f, Momentum);
  const int64_t Free = X.numel() / Channels - 1;
  follow(RunningVar, read(Squares), static_cast<float>(Free), Momentum);
  return Three(Y, Mean, Rstd);
}

std::optional<Three> batchNorm(const Place &, const Contract &C,
                               const Tensor &X, const OptionalTensor &Weight,
                               const OptionalTensor &Bias,
                               const OptionalTensor &RunningMean,
                               const OptionalTensor &RunningVar, bool Training,
                               double Momentum, double Eps) {
  return normalized(C, X, Weight, Bias, RunningMean, RunningVar, Training,
                    Momentum, Eps);
}

std::optional<Three>
batchNormLegit(const Place &, const Contract &C, const Tensor &X,
               const OptionalTensor &Weight, const OptionalTensor &Bias,
               Tensor &RunningMean, Tensor &RunningVar, bool Training,
               double Momentum, double Eps) {
  return normalized(C, X, Weight, Bias, RunningMean, RunningVar, Training,
                    Momentum, Eps);
}

std::optional<Three>
batchNormEvaluation(const Place &, const Contract &C, const Tensor &X,
                    const OptionalTensor &Weight, const OptionalTensor &Bias,
                    const Tensor &RunningMean, const Tensor &RunningVar,
                    double Momentum, double Eps) {
  return normalized(C, X, Weight, Bias, RunningMean, RunningVar, false,
                    Momentum, Eps);
}

std::optional<Three> batchNormAlone(const Place &, const Contract &C,
                                    const Tensor &X,
                                    const OptionalTensor &Weight,
                                    const OptionalTensor &Bias, bool Training,
                                    double Momentum, double Eps) {
  if (!Training)
    return std::nullopt;
  return normalized(C, X, Weight, Bias, std::nullopt, std::nullopt, true,
                    Momentum, Eps);
}

std::optional<Three>
batchNormBackward(const Place &, const Contract &C, const Tensor &Grad,
                  const Tensor &X, const OptionalTensor &Weight,
                  const OptionalTensor &, const OptionalTensor &,
                  const OptionalTensor &Mean, const OptionalTensor &Rstd,
                  bool Training, double, std::array<bool, 3> Wanted) {
  if (!Training || !areOurs(Grad, X) || !isInLoops(X) ||
      Grad.sizes() != X.sizes() || !isGiven(Mean) || !isGiven(Rstd))
    return std::nullopt;
  const int64_t Channels = X.size(1);
  if (!isVector(Weight, Channels) || !isVector(Mean, Channels) ||
      !isVector(Rstd, Channels))
    return std::nullopt;
  const Tensor Gradient = Grad.contiguous();
  const Dense W(Weight), M(Mean), R(Rstd);
  Tensor Y, Found = made({2, Channels});
  Rows S = channelsOf(X);
  S.Grad = read(Gradient);
  S.Weight = W.read();
  S.Mean = const_cast<float *>(M.read());
  S.Rstd = const_cast<float *>(R.read());
  S.Second = written(Found);
  if (Wanted[0]) {
    Y = made(X.sizes());
    S.Y = written(Y);
  }
  const Threads T = C.threads("aten::batch_norm_backward");
  if (C.fast_batch_norm_backward(&S, &T))
    return std::nullopt;
  const auto Part = [&](int64_t At) {
    return Wanted[static_cast<size_t>(1 + At)] ? Found.select(0, At) : Tensor();
  };
  return Three(Y, Part(0), Part(1));
}

//===----------------------------------------------------------------------===//
// Group norm
//===----------------------------------------------------------------------===//

/// The sizes of a group norm; nothing where stock has the words.
struct GroupSizes {
  int64_t Samples, Channels, Positions, Groups;

  static std::optional<GroupSizes> of(const Tensor &X, const c10::SymInt &N,
                                      const c10::SymInt &C,
                                      const c10::SymInt &Size, int64_t Group) {
    const auto Samples = N.maybe_as_int(), Channels = C.maybe_as_int();
    const auto Positions = Size.maybe_as_int();
    if (!Samples || !Channels || !Positions || !areOurs(X) || !X.numel() ||
        X.dim() < 2 || !X.is_contiguous() || X.size(0) != *Samples ||
        X.size(1) != *Channels || product(X.sizes().slice(2)) != *Positions ||
        Group < 1 || *Channels % Group)
      return std::nullopt;
    return GroupSizes{*Samples, *Channels, *Positions, Group};
  }
  /// A row for each group of a sample.
  Rows rows(const Tensor &X) const {
    Rows S{Samples * Groups, Channels / Groups * Positions};
    S.X = read(X);
    return S;
  }
};

std::optional<Three> groupNorm(const Place &, const Contract &C,
                               const Tensor &X, const OptionalTensor &Weight,
                               const OptionalTensor &Bias, c10::SymInt N,
                               c10::SymInt Channels, c10::SymInt Positions,
                               int64_t Group, double Eps) {
  const auto G = GroupSizes::of(X, N, Channels, Positions, Group);
  if (!G || !isVector(Weight, G->Channels) || !isVector(Bias, G->Channels))
    return std::nullopt;
  const Dense W(Weight), B(Bias);
  Tensor Y = made(X.sizes()), Mean = made({G->Samples, Group}),
         Rstd = made({G->Samples, Group});
  Rows S = G->rows(X);
  S.Mean = written(Mean);
  S.Rstd = written(Rstd);
  S.Y = written(Y);
  S.Eps = Eps;
  const Threads T = C.threads("aten::group_norm");
  if (C.fast_layer_norm(&S, &T))
    return std::nullopt;
  float *Numbers = written(Y);
  for (int64_t I = 0; I < G->Samples * G->Channels; ++I) {
    float *Plane = Numbers + I * G->Positions;
    const int64_t At = I % G->Channels;
    if (W.read())
      for (int64_t P = 0; P < G->Positions; ++P)
        Plane[P] *= W.read()[At];
    if (B.read())
      for (int64_t P = 0; P < G->Positions; ++P)
        Plane[P] += B.read()[At];
  }
  return Three(Y, Mean, Rstd);
}

std::optional<Three> groupNormBackward(const Place &, const Contract &C,
                                       const Tensor &Grad, const Tensor &X,
                                       const Tensor &Mean, const Tensor &Rstd,
                                       const OptionalTensor &Weight,
                                       c10::SymInt N, c10::SymInt Channels,
                                       c10::SymInt Positions, int64_t Group,
                                       std::array<bool, 3> Wanted) {
  const auto G = GroupSizes::of(X, N, Channels, Positions, Group);
  if (!G || !areOurs(Grad, Mean, Rstd) || Grad.sizes() != X.sizes() ||
      !isVector(Weight, G->Channels) || Mean.numel() != G->Samples * Group ||
      Rstd.numel() != G->Samples * Group)
    return std::nullopt;
  const Tensor Gradient = Grad.contiguous();
  const Tensor Means = Mean.contiguous(), Rstds = Rstd.contiguous();
  const Dense W(Weight);
  const Threads T = C.threads("aten::group_norm_backward");
  const int64_t Planes = G->Samples * G->Channels;
  Rows S = G->rows(X);
  S.Mean = const_cast<float *>(read(Means));
  S.Rstd = const_cast<float *>(read(Rstds));
  Tensor Y, OfWeight, OfBias, Scaled = Gradient, Products;
  if (Wanted[0]) {
    if (W.read()) {
      Scaled = made(X.sizes());
      for (int64_t I = 0; I < Planes; ++I)
        for (int64_t P = I * G->Positions; P < (I + 1) * G->Positions; ++P)
          written(Scaled)[P] = read(Gradient)[P] * W.read()[I % G->Channels];
    }
    Y = made(X.sizes());
    S.Grad = read(Scaled);
    S.Y = written(Y);
    if (C.fast_layer_norm_backward(&S, &T))
      return std::nullopt;
  }
  const auto PerChannel = [&](const Tensor &Terms) {
    Tensor Each = made({G->Samples, G->Channels});
    Tensor Found = made({G->Channels});
    sums(C, Planes, G->Positions, 1, read(Terms), written(Each));
    sums(C, 1, G->Samples, G->Channels, read(Each), written(Found));
    return Found;
  };
  if (Wanted[1]) {
    Products = made(X.sizes());
    S.Grad = read(Gradient);
    S.Y = nullptr;
    S.Second = written(Products);
    if (C.fast_layer_norm_backward(&S, &T))
      return std::nullopt;
    OfWeight = PerChannel(Products);
  }
  if (Wanted[2])
    OfBias = PerChannel(Gradient);
  return Three(Y, OfWeight, OfBias);
}

} // namespace

#endif
