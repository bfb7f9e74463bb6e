//===- WidenLanes.h - Loops over the lanes of a block -----------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The loops that udf-widen writes, of which LLVM's loop vectoriser makes
// vectors.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_WIDENLANES_H
#define UDF_PASS_WIDENLANES_H

#include "WidenWork.h"

#include "llvm/IR/IRBuilder.h"

namespace udf {

struct LaneBlock {
  llvm::Value *Result; // <lanes x T>
  llvm::Value *Hard;   // i1, null when nothing can be hard
  llvm::Value *Flags;  // pointer to one i8 per lane, null unless asked for
};

/// Runs \p Step, the UDF or one of its paths, on every lane of \p Args.
LaneBlock emitLanes(const WidenWork &W, llvm::IRBuilder<> &B,
                    llvm::Function *Step, llvm::ArrayRef<llvm::Value *> Args,
                    unsigned Lanes, bool KeepFlags);

/// The body of a fix-up: runs the fast path (again, unless a quick one led
/// here), then the accurate path on the lanes that are hard and live. \p Live
/// is an i<lanes> mask, or null for all lanes.
llvm::Value *emitAccurateLanes(const WidenWork &W, llvm::IRBuilder<> &B,
                               llvm::ArrayRef<llvm::Value *> Args,
                               unsigned Lanes, llvm::Value *Live);

/// Metadata of a loop that is to stay as it is.
llvm::MDNode *plainLoopMetadata(llvm::LLVMContext &Ctx);

} // namespace udf

#endif // UDF_PASS_WIDENLANES_H
