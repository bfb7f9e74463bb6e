//===- ReplaceAdopt.h - UDF code joins a module -----------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A step of udf-replace: what changes in functions of the bitcode.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_REPLACEADOPT_H
#define UDF_PASS_REPLACEADOPT_H

#include "ReplaceWork.h"

namespace udf {

/// Makes a function of the bitcode ready to join the module.
void adopt(const ReplaceRun &R, const ReplaceWork &W, llvm::Function &F);

} // namespace udf

#endif // UDF_PASS_REPLACEADOPT_H
