//===- Widen.h - Every ABI of a scalar UDF ----------------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-widen: makes scalar, vector and array forms from a scalar UDF.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_WIDEN_H
#define UDF_PASS_WIDEN_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Attribute of a form: "<function>:<form>".
inline constexpr llvm::StringLiteral FormMark = "udf-widen";

/// Adds to the module the forms that the manifest (-udf-widen-manifest) asks
/// for. Does nothing without a manifest.
struct WidenPass : llvm::PassInfoMixin<WidenPass> {
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

} // namespace udf

#endif // UDF_PASS_WIDEN_H
