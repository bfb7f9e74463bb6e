//===- Split.h - Functions of libdevice in parts ----------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-split: gives functions of CUDA's libdevice a value, a doubt and a rest.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_SPLIT_H
#define UDF_PASS_SPLIT_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Makes the parts of the functions that -udf-split-functions names.
class SplitPass : public llvm::PassInfoMixin<SplitPass> {
public:
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

} // namespace udf

#endif // UDF_PASS_SPLIT_H
