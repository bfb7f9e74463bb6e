//===- Inline.h - UDFs inlined after the vectorisers ------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-inline: inlines the forms that udf-replace kept as calls.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_INLINE_H
#define UDF_PASS_INLINE_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Does nothing without a map (-udf-replace-map).
class InlinePass : public llvm::PassInfoMixin<InlinePass> {
public:
  explicit InlinePass(bool Optimizing = true) : Optimizing(Optimizing) {}

  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }

private:
  bool Optimizing;
};

} // namespace udf

#endif // UDF_PASS_INLINE_H
