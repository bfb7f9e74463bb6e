//===- kernel_products.h - Products of matrices on the CPU ----------------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDFTORCH_KERNEL_PRODUCTS_H
#define UDFTORCH_KERNEL_PRODUCTS_H

#include "kernel_call.h"

#include <ATen/ops/mul.h>

namespace {

using Scalar = c10::Scalar;

bool isReal(const Scalar &S) {
  return !S.isSymbolic() && (S.isFloatingPoint() || S.isIntegral(true));
}

/// Writes m times n products over k of matrices with any strides; tells whether
/// there was memory. Factors in bfloat16 are multiplied exactly.
bool multiplyStrided(const Contract &C, int64_t M, int64_t N, int64_t K,
                     const Tensor &A, int64_t Am, int64_t Ak, const Tensor &B,
                     int64_t Bk, int64_t Bn, float *Y) {
  const Threads T = C.threads("aten::mm");
  if (A.scalar_type() == at::kBFloat16)
    return !C.fast_exact_mm(M, N, K, readNarrow(A), Am, Ak, readNarrow(B), Bk,
                            Bn, Y, &T);
  return !C.fast_mm(M, N, K, read(A), Am, Ak, read(B), Bk, Bn, Y, &T);
}

/// The same of two matrices.
bool multiply(const Contract &C, const Tensor &A, const Tensor &B, float *Y) {
  return multiplyStrided(C, A.size(0), B.size(1), A.size(1), A, A.stride(0),
                         A.stride(1), B, B.stride(0), B.stride(1), Y);
}

/// The same of a matrix and a vector.
bool multiplyVector(const Contract &C, const Tensor &A, const Tensor &V,
                    float *Y) {
  return multiplyStrided(C, A.size(0), 1, A.size(1), A, A.stride(0),
                         A.stride(1), V, V.stride(0), 1, Y);
}

/// The same of each two matrices of two batches.
bool multiplyEach(const Contract &C, const Tensor &A, const Tensor &B,
                  float *Y) {
  const Threads T = C.threads("aten::bmm");
  if (A.scalar_type() == at::kBFloat16)
    return !C.fast_exact_bmm(A.size(0), A.size(1), B.size(2), A.size(2),
                             readNarrow(A), A.stride(0), A.stride(1),
                             A.stride(2), readNarrow(B), B.stride(0),
                             B.stride(1), B.stride(2), Y, &T);
  return !C.fast_bmm(A.size(0), A.size(1), B.size(2), A.size(2), read(A),
                     A.stride(0), A.stride(1), A.stride(2), read(B),
                     B.stride(0), B.stride(1), B.stride(2), Y, &T);
}

/// Whether factors, and what is added, all are float32 or all bfloat16.
template <class... T> bool areFactors(const T &...All) {
  return areOurs(All...) || areExact(All...);
}

/// A result in float32, in the dtype of the factors.
Tensor rounded(const Tensor &Product, const Tensor &Factor) {
  return Factor.scalar_type() == at::kFloat ? Product
                                            : Product.to(at::kBFloat16);
}

/// Whether a shape is broadcast to that of a result.
bool spreads(IntArrayRef Shape, IntArrayRef Wanted) {
  if (Shape.size() > Wanted.size())
    return false;
  const auto Ahead = Wanted.size() - Shape.size();
  for (size_t I = 0; I < Shape.size(); ++I)
    if (Shape[I] != 1 && Shape[I] != Wanted[Ahead + I])
      return false;
  return true;
}

// So many elements and more are added by torch's threads.
constexpr int64_t Many = 1 << 15;

/// Makes a product alpha * product + beta * self: factors of 1 are left out,
/// one of 0 leaves self out.
void add(const Tensor &Addend, Tensor &Product, const Scalar &Beta,
         const Scalar &Alpha) {
  const Tensor Self = Addend.to(at::kFloat);
  if (Alpha.toDouble() != 1)
    Product.mul_(Alpha);
  const double B = Beta.toDouble();
  if (B == 0)
    return;
  const int64_t N = Product.dim() ? Product.size(-1) : 1;
  const bool IsRow =
      Self.dim() == 1 && Self.size(0) == N && (Self.stride(0) == 1 || N == 1);
  if (B != 1 || !IsRow || Product.numel() >= Many) {
    Product.add_(B == 1 ? Self : at::mul(Self, Beta));
    return;
  }
  const float *X = read(Self);
  float *Y = written(Product);
  for (float *End = Y + Product.numel(); Y != End; Y += N)
    for (int64_t I = 0; I < N; ++I)
      Y[I] += X[I];
}

std::optional<Tensor> mm(const Place &, const Contract &C, const Tensor &A,
                         const Tensor &B) {
  if (!areFactors(A, B) || A.dim() != 2 || B.dim() != 2 ||
      A.size(1) != B.size(0))
    return std::nullopt;
  Tensor Y = made({A.size(0), B.size(1)});
  if (!multiply(C, A, B, written(Y)))
    return std::nullopt;
  return rounded(Y, A);
}

std::optional<Tensor> addmm(const Place &, const Contract &C,
                            const Tensor &Self, const Tensor &A,
                            const Tensor &B, const Scalar &Beta,
                            const Scalar &Alpha) {
  if (!areFactors(Self, A, B) || !isReal(Beta) || !isReal(Alpha) ||
      A.dim() != 2 || B.dim() != 2 || A.size(1) != B.size(0) ||
      !spreads(Self.sizes(), {A.size(0), B.size(1)}))
    return std::nullopt;
  Tensor Y = made({A.size(0), B.size(1)});
  if (!multiply(C, A, B, written(Y)))
    return std::nullopt;
  add(Self, Y, Beta, Alpha);
  return rounded(Y, A);
}

bool fitEach(const Tensor &A, const Tensor &B) {
  return A.dim() == 3 && B.dim() == 3 && A.size(0) == B.size(0) &&
         A.size(2) == B.size(1);
}

std::optional<Tensor> bmm(const Place &, const Contract &C, const Tensor &A,
                          const Tensor &B) {
  if (!areFactors(A, B) || !fitEach(A, B))
    return std::nullopt;
  Tensor Y = made({A.size(0), A.size(1), B.size(2)});
  if (!multiplyEach(C, A, B, written(Y)))
    return std::nullopt;
  return rounded(Y, A);
}

std::optional<Tensor> baddbmm(const Place &, const Contract &C,
                              const Tensor &Self, const Tensor &A,
                              const Tensor &B, const Scalar &Beta,
                              const Scalar &Alpha) {
  if (!areFactors(Self, A, B) || !isReal(Beta) || !isReal(Alpha) ||
      !fitEach(A, B) ||
      !spreads(Self.sizes(), {A.size(0), A.size(1), B.size(2)}))
    return std::nullopt;
  Tensor Y = made({A.size(0), A.size(1), B.size(2)});
  if (!multiplyEach(C, A, B, written(Y)))
    return std::nullopt;
  add(Self, Y, Beta, Alpha);
  return rounded(Y, A);
}

std::optional<Tensor> dot(const Place &, const Contract &C, const Tensor &A,
                          const Tensor &B) {
  if (!areFactors(A, B) || A.dim() != 1 || B.dim() != 1 ||
      A.size(0) != B.size(0))
    return std::nullopt;
  Tensor Y = made({});
  if (!multiplyStrided(C, 1, 1, A.size(0), A, 1, A.stride(0), B, B.stride(0), 1,
                       written(Y)))
    return std::nullopt;
  return rounded(Y, A);
}

bool fitVector(const Tensor &A, const Tensor &V) {
  return A.dim() == 2 && V.dim() == 1 && A.size(1) == V.size(0);
}

std::optional<Tensor> mv(const Place &, const Contract &C, const Tensor &A,
                         const Tensor &V) {
  if (!areFactors(A, V) || !fitVector(A, V))
    return std::nullopt;
  Tensor Y = made({A.size(0)});
  if (!multiplyVector(C, A, V, written(Y)))
    return std::nullopt;
  return rounded(Y, A);
}

std::optional<Tensor> addmv(const Place &, const Contract &C,
                            const Tensor &Self, const Tensor &A,
                            const Tensor &V, const Scalar &Beta,
                            const Scalar &Alpha) {
  if (!areFactors(Self, A, V) || !isReal(Beta) || !isReal(Alpha) ||
      !fitVector(A, V) || !spreads(Self.sizes(), {A.size(0)}))
    return std::nullopt;
  Tensor Y = made({A.size(0)});
  if (!multiplyVector(C, A, V, written(Y)))
    return std::nullopt;
  add(Self, Y, Beta, Alpha);
  return rounded(Y, A);
}

} // namespace

#endif
