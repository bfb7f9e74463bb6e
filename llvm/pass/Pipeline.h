//===- Pipeline.h - Array forms that work on two blocks at once -*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-pipeline: begins the next block of an array form before this one is done.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_PIPELINE_H
#define UDF_PASS_PIPELINE_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Runs at the end of clang's pipeline, on the array forms that udf-widen made.
struct PipelinePass : llvm::PassInfoMixin<PipelinePass> {
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
};

} // namespace udf

#endif // UDF_PASS_PIPELINE_H
