//===- kernel_windows.h - Convolutions on the CPU -------------------------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDFTORCH_KERNEL_WINDOWS_H
#define UDFTORCH_KERNEL_WINDOWS_H

#include "kernel_sums.h"

namespace {

constexpr int64_t Directions = 3;

/// The arguments of a convolution that stock accepts.
struct Windows {
  int64_t Rank = 0; ///< the number of directions
  IntArrayRef Stride, Padding, Dilation, OutputPadding;
  int64_t Groups = 0;

  /// Returns false if one of them is symbolic, or fits neither tensor.
  bool take(const Tensor &X, const Tensor &W, c10::SymIntArrayRef Strides,
            c10::SymIntArrayRef Paddings, c10::SymIntArrayRef Dilations,
            c10::SymIntArrayRef OutputPaddings, const c10::SymInt &Group) {
    const auto S = c10::asIntArrayRefSlowOpt(Strides);
    const auto P = c10::asIntArrayRefSlowOpt(Paddings);
    const auto D = c10::asIntArrayRefSlowOpt(Dilations);
    const auto O = c10::asIntArrayRefSlowOpt(OutputPaddings);
    const auto G = Group.maybe_as_int();
    if (!S || !P || !D || !O || !G)
      return false;
    Rank = X.dim() - 2;
    Stride = *S;
    Padding = *P;
    Dilation = *D;
    OutputPadding = *O;
    Groups = *G;
    const auto Fits = [&](IntArrayRef Given, int64_t Least) {
      if (static_cast<int64_t>(Given.size()) != Rank)
        return false;
      for (int64_t Each : Given)
        if (Each < Least)
          return false;
      return true;
    };
    return Rank >= 1 && Rank <= Directions && W.dim() == X.dim() && X.numel() &&
           W.numel() && Fits(Stride, 1) && Fits(Padding, 0) &&
           Fits(Dilation, 1) && Groups >= 1 && W.size(0) % Groups == 0;
  }

  /// The positions of the result in a direction, of a convolution or a
  /// transposed one; less than 1 if there are none.
  int64_t result(int64_t Size, int64_t Taps, int64_t D) const {
    const int64_t Room = Size + 2 * Padding[D] - Dilation[D] * (Taps - 1) - 1;
    return Room < 0 ? 0 : Room / Stride[D] + 1;
  }
  int64_t transposed(int64_t Size, int64_t Taps, int64_t D) const {
    return (Size - 1) * Stride[D] - 2 * Padding[D] + Dilation[D] * (Taps - 1) +
           OutputPadding[D] + 1;
  }
};

/// Whether strides say that channels are last (``is_channels_last_strides_2d``
/// and ``_3d`` of torch); memory alone does not with one channel.
bool hasChannelsLast(const Tensor &X) {
  return X.suggest_memory_format() != at::MemoryFormat::Contiguous;
}

/// `struct convolution` before its addresses. Directions that are not there
/// have one position.
Convolution described(const Tensor &X, int64_t Groups, int64_t Rows,
                      int64_t Depth) {
  Convolution S;
  S.Batch = X.size(0);
  S.Groups = Groups;
  S.Rows = Rows;
  S.Depth = Depth;
  S.X = read(X);
  S.Xs[0] = X.stride(0);
  S.Xs[1] = X.stride(1);
  S.Bias = nullptr;
  const int64_t Ahead = Directions + 2 - X.dim();
  for (int64_t D = 0; D < Directions; ++D) {
    const bool Is = D >= Ahead;
    S.Size[D] = Is ? X.size(2 + D - Ahead) : 1;
    S.Xs[2 + D] = Is ? X.stride(2 + D - Ahead) : 0;
    S.Spread[D] = S.Room[D] = S.Taps[D] = S.Step[D] = 1;
    S.Dilation[D] = S.Result[D] = 1;
    S.Before[D] = S.Ws[3 + D] = 0;
  }
  S.Ws[0] = S.Ws[1] = S.Ws[2] = 0;
  return S;
}

/// The windows of a convolution of X with taps of some sizes.
void place(Convolution &S, const Tensor &X, IntArrayRef Taps,
           const Windows &W) {
  const int64_t Ahead = Directions - W.Rank;
  for (int64_t D = 0; D < W.Rank; ++D) {
    const int64_t A = Ahead + D;
    S.Before[A] = W.Padding[D];
    S.Room[A] = X.size(2 + D) + 2 * W.Padding[D];
    S.Taps[A] = Taps[D];
    S.Step[A] = W.Stride[D];
    S.Dilation[A] = W.Dilation[D];
    S.Result[A] = W.result(X.size(2 + D), Taps[D], D);
  }
}

/// A convolution; nothing if there was no memory.
std::optional<Tensor> correlate(const Contract &C, const Tensor &X,
                                const Tensor &W, const float *Bias,
                                const Windows &How) {
  const int64_t Rows = W.size(0) / How.Groups;
  Convolution S = described(X, How.Groups, Rows, W.size(1));
  place(S, X, W.sizes().slice(2), How);
  const int64_t Ahead = Directions - How.Rank;
  S.W = read(W);
  S.Ws[0] = Rows * W.stride(0);
  S.Ws[1] = W.stride(0);
  S.Ws[2] = W.stride(1);
  Sizes Shape{X.size(0), W.size(0)};
  for (int64_t D = 0; D < How.Rank; ++D) {
    S.Ws[3 + Ahead + D] = W.stride(2 + D);
    Shape.push_back(S.Result[Ahead + D]);
  }
  Tensor Y = made(Shape);
  S.Bias = Bias;
  S.Y = written(Y);
  const Threads T = C.threads("aten::convolution");
  if (C.fast_convolution(&S, &T))
    return std::nullopt;
  return Y;
}

/// The gradient of an input whose positions have a shape: a convolution of the
/// result's gradient, spread out, with taps in reverse order.
std::optional<Tensor> inputGradient(const Contract &C, const Tensor &Grad,
                                    IntArrayRef Positions, const Tensor &W,
                                    const Windows &How) {
  const int64_t Rows = W.size(1), Depth = W.size(0) / How.Groups;
  Convolution S = described(Grad, How.Groups, Rows, Depth);
  S.W = read(W);
  S.Ws[0] = Depth * W.stride(0);
  S.Ws[1] = W.stride(1);
  S.Ws[2] = W.stride(0);
  const int64_t Ahead = Directions - How.Rank;
  Sizes Shape{Grad.size(0), Rows * How.Groups};
  for (int64_t D = 0; D < How.Rank; ++D) {
    const int64_t A = Ahead + D, Taps = W.size(2 + D);
    const int64_t Reach = How.Dilation[D] * (Taps - 1);
    S.Before[A] = Reach - How.Padding[D];
    S.Room[A] = Positions[D] + Reach;
    S.Taps[A] = Taps;
    S.Dilation[A] = How.Dilation[D];
    S.Spread[A] = How.Stride[D];
    S.Result[A] = Positions[D];
    S.W += (Taps - 1) * W.stride(2 + D);
    S.Ws[3 + A] = -W.stride(2 + D);
    Shape.push_back(Positions[D]);
  }
  Tensor Y = made(Shape);
  S.Y = written(Y);
  const Threads T = C.threads("aten::convolution");
  if (C.fast_convolution(&S, &T))
    return std::nullopt;
  return Y;
}

/// The gradient of a weight: for each sample a product over positions, and
/// their sum by the tree.
std::optional<Tensor> weightGradient(const Contract &C, const Tensor &Grad,
                                     const Tensor &X, const Tensor &W,
                                     const Windows &How) {
  const Tensor G = Grad.contiguous();
  const int64_t Rows = G.size(1), Depth = X.size(1) / How.Groups;
  Convolution S = described(X, How.Groups, Rows / How.Groups, Depth);
  place(S, X, W.sizes().slice(2), How);
  Sizes Shape{Rows, Depth};
  for (int64_t D = 0; D < How.Rank; ++D)
    Shape.push_back(W.size(2 + D));
  Tensor Y = made(Shape);
  S.W = read(G);
  S.Y = written(Y);
  const Threads T = C.threads("aten::convolution");
  if (C.fast_weight_gradient(&S, &T))
    return std::nullopt;
  return Y;
}

/// The positions of a result that stock computes, too; none where it refuses.
std::optional<Sizes> shaped(const Tensor &X, const Tensor &W, bool Transposed,
                            const Windows &How) {
  const int64_t Channels = Transposed ? W.size(0) : W.size(1) * How.Groups;
  if (X.size(1) != Channels)
    return std::nullopt;
  Sizes Found;
  for (int64_t D = 0; D < How.Rank; ++D) {
    if (Transposed &&
        (static_cast<int64_t>(How.OutputPadding.size()) != How.Rank ||
         How.OutputPadding[D] < 0 || How.OutputPadding[D] >= How.Stride[D]))
      return std::nullopt;
    const int64_t Size = X.size(2 + D), Taps = W.size(2 + D);
    Found.push_back(Transposed ? How.transposed(Size, Taps, D)
                               : How.result(Size, Taps, D));
    if (Found.back() < 1)
      return std::nullopt;
  }
  return Found;
}

std::optional<Tensor>
convolution(const Place &, const Contract &C, const Tensor &X, const Tensor &W,
            const OptionalTensor &Bias, c10::SymIntArrayRef Stride,
            c10::SymIntArrayRef Padding, c10::SymIntArrayRef Dilation,
            bool Transposed, c10::SymIntArrayRef OutputPadding,
            c10::SymInt Groups) {
  Windows How;
  if (!areOurs(X, W) || hasChannelsLast(X) || hasChannelsLast(W) ||
      !How.take(X, W, Stride, Padding, Dilation, OutputPadding, Groups))
    return std::nullopt;
  const auto Shape = shaped(X, W, Transposed, How);
  const int64_t Rows = Transposed ? W.size(1) * How.Groups : W.size(0);
  if (!Shape || !isVector(Bias, Rows))
    return std::nullopt;
  const Dense Biases(Bias);
  if (!Transposed)
    return correlate(C, X, W, Biases.read(), How);
  auto Y = inputGradient(C, X, *Shape, W, How);
  if (Y && Biases.read()) {
    Sizes Ones(Shape->size() + 1, 1);
    Ones[0] = Rows;
    Y->add_(Biases.Kept.view(Ones));
  }
  return Y;
}

std::optional<std::tuple<Tensor, Tensor, Tensor>>
convolutionBackward(const Place &, const Contract &C, const Tensor &Grad,
                    const Tensor &X, const Tensor &W,
                    at::OptionalSymIntArrayRef, c10::SymIntArrayRef Stride,
                    c10::SymIntArrayRef Padding, c10::SymIntArrayRef Dilation,
                    bool Transposed, c10::SymIntArrayRef OutputPadding,
                    c10::SymInt Groups, std::array<bool, 3> Wanted) {
  Windows How;
  if (!areOurs(Grad, X, W) || hasChannelsLast(X) || hasChannelsLast(W) ||
      !How.take(X, W, Stride, Padding, Dilation, OutputPadding, Groups))
    return std::nullopt;
  const auto Shape = shaped(X, W, Transposed, How);
  const int64_t Rows = Transposed ? W.size(1) * How.Groups : W.size(0);
  if (!Shape || Grad.dim() != X.dim() || Grad.size(0) != X.size(0) ||
      Grad.size(1) != Rows || Grad.sizes().slice(2) != IntArrayRef(*Shape))
    return std::nullopt;
  std::optional<Tensor> OfInput(std::in_place), OfWeight(std::in_place);
  if (Wanted[0])
    OfInput = Transposed ? correlate(C, Grad, W, nullptr, How)
                         : inputGradient(C, Grad, X.sizes().slice(2), W, How);
  // A transposed convolution is the gradient of one from its result to its
  // input.
  if (Wanted[1])
    OfWeight = Transposed ? weightGradient(C, X, Grad, W, How)
                          : weightGradient(C, Grad, X, W, How);
  if (!OfInput || !OfWeight)
    return std::nullopt;
  Tensor OfBias;
  if (Wanted[2]) {
    const Tensor G = Grad.contiguous();
    const int64_t Samples = G.size(0);
    Tensor Each = made({Samples, Rows});
    OfBias = made({Rows});
    sums(C, Samples * Rows, product(G.sizes().slice(2)), 1, read(G),
         written(Each));
    sums(C, 1, Samples, Rows, read(Each), written(OfBias));
  }
  return std::tuple(*OfInput, *OfWeight, OfBias);
}

} // namespace

#endif
