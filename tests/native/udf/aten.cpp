//===- aten.cpp - Kernels from ATen's own headers -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// log_softmax over rows, ELU, and an element-wise loop of libm functions that
// the compiler vectorises.
//
//===----------------------------------------------------------------------===//

#include <ATen/cpu/vec/vec.h>
#include <ATen/native/cpu/Elu.h>
#include <ATen/native/cpu/LogSoftmaxKernelImpl.h>

#include <cmath>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

using Vec = at::vec::Vectorized<float>;

EXPORT void aten_log_softmax(std::int64_t rows, std::int64_t size,
                             const float *in, float *out) {
  at::native::serial_vec_log_softmax_lastdim_range<float>(in, out, size, 4, 0,
                                                          rows);
}

EXPORT void aten_elu(std::int64_t n, const float *in, float *out) {
  auto scalar =
      at::native::get_scalar_elu_elementwise_func<float>(1.5f, 1.0f, 1.0f);
  auto vector =
      at::native::get_vectorized_elu_elementwise_func<float>(1.5f, 1.0f, 1.0f);
  std::int64_t i = 0;
  for (; i + Vec::size() <= n; i += Vec::size())
    vector(Vec::loadu(in + i)).store(out + i);
  for (; i < n; ++i)
    out[i] = scalar(in[i]);
}

EXPORT void aten_exp(std::int64_t n, const float *in, float *out) {
  at::vec::map([](Vec x) { return x.exp(); }, out, in, n);
}

EXPORT void aten_softplus(std::int64_t n, const float *__restrict in,
                          float *__restrict out) {
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = std::log(std::exp(in[i]) + 1.0f);
}
