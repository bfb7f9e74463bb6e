//===- ReplaceCheck.h - Whether forms fit their targets ---------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A step of udf-replace: what is wrong with the bitcode for this module.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_REPLACECHECK_H
#define UDF_PASS_REPLACECHECK_H

#include "ReplaceWork.h"

namespace udf {

/// Whether the bitcode has what the map promises, in the types of the targets;
/// reports what it lacks.
bool checkBitcode(ReplaceRun &R, const ReplaceWork &W, const llvm::Module &Src);

/// Whether a vector form takes the arguments of the scalar one in each lane,
/// and the CPU of the module can run it.
bool variantFits(const ReplaceRun &R, const ReplaceWork &W,
                 const llvm::Function &Variant, const llvm::Function &Scalar);

/// Fused multiply-adds of the bitcode become library calls on a CPU that has
/// none.
void warnOfMissingFma(const ReplaceRun &R, const ReplaceWork &W,
                      llvm::ArrayRef<llvm::Function *> Forms);

} // namespace udf

#endif // UDF_PASS_REPLACECHECK_H
