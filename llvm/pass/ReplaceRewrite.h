//===- ReplaceRewrite.h - Uses of targets become uses of forms --*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The last step of udf-replace: what its parts share.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_REPLACEREWRITE_H
#define UDF_PASS_REPLACEREWRITE_H

#include "ReplaceWork.h"

#include "llvm/IR/InstrTypes.h"
#include <map>
#include <string>
#include <utility>

namespace udf {

/// What was done for one target, for the report.
struct Tally {
  unsigned Bodies = 0, Calls = 0, Addresses = 0, Intrinsics = 0;
};

/// By target and replacement.
using Tallies = std::map<std::pair<std::string, std::string>, Tally>;

/// Gives a function of the module a body that calls its form.
void replaceBody(ReplaceRun &R, Tally &T, llvm::Function &F,
                 llvm::Function &Form);

/// Rewrites the calls of one intrinsic on one type.
void rewriteIntrinsicCalls(ReplaceRun &R, Tallies &Done,
                           const IntrinsicBinding &Binding);

/// Tells the vectorisers which vector forms stand for a call of the form.
void attachVariants(const ReplaceRun &R, llvm::CallBase &Call,
                    const llvm::Function &Form);

/// Tells the user who asks for remarks that a call now goes to the form.
void remarkReplaced(const llvm::CallBase &Call, llvm::StringRef Target,
                    llvm::StringRef Form);

} // namespace udf

#endif // UDF_PASS_REPLACEREWRITE_H
