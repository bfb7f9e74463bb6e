//===- Preserved.h - What a module pass leaves valid ------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The analyses that survive a pass that changes some functions of a module.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_PRESERVED_H
#define UDF_PASS_PRESERVED_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/PassManager.h"

namespace udf {

/// What a module pass preserves that keeps the analyses of functions up to date
/// itself: all of them, and none of the module's.
llvm::PreservedAnalyses preservedFunctions();

/// Forgets the analyses of functions that a module pass has made or changed,
/// and of those that use them, whose analyses may rest on their attributes.
/// Returns that the pass preserves the analyses of all other functions.
llvm::PreservedAnalyses preservedBut(llvm::ArrayRef<llvm::Function *> Changed,
                                     llvm::FunctionAnalysisManager &FAM);

} // namespace udf

#endif // UDF_PASS_PRESERVED_H
