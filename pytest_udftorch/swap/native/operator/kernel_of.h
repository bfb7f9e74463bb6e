//===- kernel_of.h - The kernel that an operator has at a dispatch key ----===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
#ifndef UDFTORCH_KERNEL_OF_H
#define UDFTORCH_KERNEL_OF_H

#include <ATen/core/dispatch/Dispatcher.h>

namespace udf {
namespace detail {

// torch 2.11 offers a kernel only behind a class that calls it boxed. An
// explicit instantiation may name what is private ([temp.spec.general]).
struct OfSafe {
  friend auto memberOf(OfSafe);
};
template <auto Member> struct Private {
  friend auto memberOf(OfSafe) { return Member; }
};
template struct Private<&c10::SafeKernelFunction::kernel_>;

/// The kernel that the dispatcher calls for an operator at a key now.
template <class Handle>
c10::KernelFunction kernelOf(const Handle &Op, c10::DispatchKey Key) {
  if constexpr (requires { Op.lookup(c10::DispatchKeySet(Key)); })
    return Op.lookup(c10::DispatchKeySet(Key));
  else
    return Op.getComputedKernelForDispatchKey(Key).*memberOf(OfSafe());
}

} // namespace detail
} // namespace udf

#endif
