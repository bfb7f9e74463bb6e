//===- contract_kernels.cpp - Operators of the contract on the CPU --------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Kernels in C++ above the functions of pytest_udftorch/swap/contract, which
// have the same bits. contract/kernels.py makes the targets of boards of them.
// A call that one of them takes enters no Python.
//
//===----------------------------------------------------------------------===//

#include "kernel_attention.h"
#include "kernel_norms.h"
#include "kernel_products.h"
#include "kernel_sums.h"
#include "kernel_windows.h"

#include <ATen/Operators.h>
#include <cstring>
#include <map>
#include <string>

namespace {

template <class Operator, auto Take, Rounds How = Rounds::Never,
          size_t... Parameters>
KernelFunction kernel(Place P) {
  using Called = Kernel<typename Operator::schema, Take, How, Parameters...>;
  return KernelFunction::makeFromUnboxedFunctor<false, Called>(
      std::make_unique<Called>(std::move(P)));
}

using Make = KernelFunction (*)(Place);

/// Overload -> what makes its kernel.
const std::map<std::string, Make> &makers() {
  namespace ops = at::_ops;
  static const std::map<std::string, Make> All = {
      {"aten::_log_softmax",
       kernel<ops::_log_softmax, logSoftmax, Rounds::All>},
      {"aten::_log_softmax_backward_data",
       kernel<ops::_log_softmax_backward_data, logSoftmaxBackward,
              Rounds::All>},
      {"aten::_native_batch_norm_legit",
       kernel<ops::_native_batch_norm_legit, batchNormLegit>},
      {"aten::_native_batch_norm_legit.no_stats",
       kernel<ops::_native_batch_norm_legit_no_stats, batchNormAlone,
              Rounds::First, 1, 2>},
      {"aten::_native_batch_norm_legit_no_training",
       kernel<ops::_native_batch_norm_legit_no_training, batchNormEvaluation,
              Rounds::First, 1, 2, 3, 4>},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       kernel<ops::_scaled_dot_product_flash_attention_for_cpu, attention,
              Rounds::FirstOnly>},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       kernel<ops::_scaled_dot_product_flash_attention_for_cpu_backward,
              attentionBackward, Rounds::Mixed>},
      {"aten::_softmax", kernel<ops::_softmax, softmax, Rounds::All>},
      {"aten::_softmax_backward_data",
       kernel<ops::_softmax_backward_data, softmaxBackward, Rounds::All>},
      {"aten::addmm", kernel<ops::addmm, ::addmm, Rounds::Products>},
      {"aten::addmv", kernel<ops::addmv, ::addmv, Rounds::Products>},
      {"aten::baddbmm", kernel<ops::baddbmm, ::baddbmm, Rounds::Products>},
      {"aten::bernoulli_.float", kernel<ops::bernoulli__float, ::bernoulli>},
      {"aten::bmm", kernel<ops::bmm, ::bmm, Rounds::Products>},
      {"aten::convolution",
       kernel<ops::convolution, ::convolution, Rounds::All>},
      {"aten::convolution_backward",
       kernel<ops::convolution_backward, convolutionBackward, Rounds::All>},
      {"aten::dot", kernel<ops::dot, ::dot, Rounds::Products>},
      {"aten::embedding_dense_backward",
       kernel<ops::embedding_dense_backward, embeddingBackward, Rounds::All>},
      {"aten::mean", kernel<ops::mean, sumAll<true>, Rounds::All>},
      {"aten::mean.dim", kernel<ops::mean_dim, sumDims<true>, Rounds::All>},
      {"aten::mm", kernel<ops::mm, ::mm, Rounds::Products>},
      {"aten::mv", kernel<ops::mv, ::mv, Rounds::Products>},
      {"aten::native_batch_norm", kernel<ops::native_batch_norm, batchNorm,
                                         Rounds::Statistics, 1, 2, 3, 4>},
      {"aten::native_batch_norm_backward",
       kernel<ops::native_batch_norm_backward, batchNormBackward,
              Rounds::Weighted, 2>},
      {"aten::native_layer_norm",
       kernel<ops::native_layer_norm, layerNorm, Rounds::First, 2, 3>},
      {"aten::native_layer_norm_backward",
       kernel<ops::native_layer_norm_backward, layerNormBackward, Rounds::First,
              5>},
      {"aten::cumsum", kernel<ops::cumsum, ::cumsum, Rounds::All>},
      {"aten::linalg_vector_norm",
       kernel<ops::linalg_vector_norm, vectorNorm, Rounds::All>},
      {"aten::mse_loss", kernel<ops::mse_loss, mseLoss, Rounds::All>},
      {"aten::native_group_norm",
       kernel<ops::native_group_norm, groupNorm, Rounds::First, 1, 2>},
      {"aten::native_group_norm_backward",
       kernel<ops::native_group_norm_backward, groupNormBackward, Rounds::First,
              4>},
      {"aten::std.correction",
       kernel<ops::std_correction, variance<true>, Rounds::All>},
      {"aten::std_mean.correction",
       kernel<ops::std_mean_correction, varianceAndMean<true>, Rounds::All>},
      {"aten::var.correction",
       kernel<ops::var_correction, variance<false>, Rounds::All>},
      {"aten::var_mean.correction",
       kernel<ops::var_mean_correction, varianceAndMean<false>, Rounds::All>},
      {"aten::nll_loss2d_forward",
       kernel<ops::nll_loss2d_forward, nllLoss2d, Rounds::All>},
      {"aten::nll_loss_forward",
       kernel<ops::nll_loss_forward, nllLoss, Rounds::All>},
      {"aten::pow.Tensor_Scalar",
       kernel<ops::pow_Tensor_Scalar, power, Rounds::All>},
      {"aten::pow_.Scalar", kernel<ops::pow__Scalar, powerInPlace>},
      {"aten::sqrt", kernel<ops::sqrt, root, Rounds::All>},
      {"aten::sqrt.out", kernel<ops::sqrt_out, rootOut>},
      {"aten::sqrt_", kernel<ops::sqrt_, rootInPlace>},
      {"aten::sum", kernel<ops::sum, sumAll<false>, Rounds::All>},
      {"aten::sum.dim_IntList",
       kernel<ops::sum_dim_IntList, sumDims<false>, Rounds::All>},
  };
  return All;
}

} // namespace

extern "C" {

/// The names of the functions that a struct Contract has, in their order, each
/// followed by a blank.
EXPORT const char *udfcontract_names() {
#define NAME(Function, ...) #Function " "
  return UDFTORCH_CONTRACT(NAME);
#undef NAME
}

/// The kernel of an overload at a dispatch key, a KernelFunction, above one in
/// Python; null if there is none. Whoever asks drops it.
EXPORT void *udfcontract_make(const char *Overload, const char *Key,
                              const void *Stock, const void *Below,
                              uint64_t Dtypes) noexcept {
  const std::string Name = Overload;
  const auto Maker = makers().find(Name);
  if (Maker == makers().end())
    return nullptr;
  const size_t Dot = Name.find('.');
  auto Op = c10::Dispatcher::singleton().findSchemaOrThrow(
      Name.substr(0, Dot).c_str(),
      Dot == std::string::npos ? "" : Name.substr(Dot + 1).c_str());
  return new KernelFunction(
      Maker->second({Op, c10::DispatchKeySet(c10::parseDispatchKey(Key)),
                     *static_cast<const KernelFunction *>(Stock),
                     *static_cast<const KernelFunction *>(Below), Dtypes}));
}

EXPORT void udfcontract_drop(void *Kernel) {
  delete static_cast<KernelFunction *>(Kernel);
}

/// Sets the compiled contract that kernels call, a struct Contract, or null;
/// then every call goes to Python.
EXPORT void udfcontract_use(const void *New) {
  InUse.store(static_cast<const Contract *>(New));
}

/// Sets the functions that softmax calls, a struct Functions, or null.
EXPORT void udfcontract_functions(const void *New) {
  OfSessions.store(static_cast<const Functions *>(New));
}

/// Whether these were called since the last time.
EXPORT int udfcontract_called() { return Called.exchange(false); }

/// Sets whether this thread's calls all go to Python; returns the old value.
EXPORT int udfcontract_to_python(int On) {
  const int Before = ToPython;
  ToPython = On;
  return Before;
}

/// Calls that the compiled contract computed so far.
EXPORT uint64_t udfcontract_taken() { return Taken; }
}
