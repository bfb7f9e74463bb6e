//===- Lanes.h - Instructions that C has no operator for --------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-lanes: gives calls of a scalar function the vector instruction it is.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_LANES_H
#define UDF_PASS_LANES_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Runs before the vectorisers. What they leave of the calls is inlined by
/// udf-tables<late>.
struct LanesPass : llvm::PassInfoMixin<LanesPass> {
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
};

} // namespace udf

#endif // UDF_PASS_LANES_H
