//===- GpuCalls.h - What UDFs on a GPU may call -----------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-gpu-calls: refuses calls of what a GPU does not have.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_GPUCALLS_H
#define UDF_PASS_GPUCALLS_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Checks the bitcode of UDFs for a GPU; changes nothing.
class GpuCallsPass : public llvm::PassInfoMixin<GpuCallsPass> {
public:
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

} // namespace udf

#endif // UDF_PASS_GPUCALLS_H
