//===- Branchless.h - Double divisions for GPUs -----------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-branchless: double divisions and square roots without a branch on GPUs.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_BRANCHLESS_H
#define UDF_PASS_BRANCHLESS_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Replaces the operations in the functions that -udf-branchless-functions
/// names.
class BranchlessPass : public llvm::PassInfoMixin<BranchlessPass> {
public:
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

} // namespace udf

#endif // UDF_PASS_BRANCHLESS_H
