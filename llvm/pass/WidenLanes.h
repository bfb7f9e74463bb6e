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

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/IR/IRBuilder.h"

namespace udf {

/// A buffer in the frame of \p F.
llvm::AllocaInst *entryAlloca(llvm::Function *F, llvm::Type *Ty,
                              const llvm::Twine &Name, llvm::Align Alignment);

struct LaneBlock {
  llvm::Value *Result; // <lanes x T>
  llvm::Value *Hard;   // i1, null when nothing can be hard
  llvm::Value *Flags;  // pointer to one i8 per lane, null unless asked for
};

/// Runs \p Step, the UDF or one of its paths, on every lane of \p Args.
LaneBlock emitLanes(const WidenWork &W, llvm::IRBuilder<> &B,
                    llvm::Function *Step, llvm::ArrayRef<llvm::Value *> Args,
                    unsigned Lanes, bool KeepFlags);

/// The hard lanes of \p Block, which kept its flags, as <width x i1> for each
/// register.
llvm::SmallVector<llvm::Value *, 4> hardParts(const WidenWork &W,
                                              llvm::IRBuilder<> &B,
                                              const LaneBlock &Block,
                                              unsigned Lanes);

/// All parts, as an i<lanes> mask.
llvm::Value *joinParts(llvm::IRBuilder<> &B,
                       llvm::ArrayRef<llvm::Value *> Parts, unsigned Lanes);

/// Whether a lane of any part is set, as i1.
llvm::Value *anyOfParts(llvm::IRBuilder<> &B,
                        llvm::ArrayRef<llvm::Value *> Parts);

/// The parts of \p Block, joined.
llvm::Value *hardLanes(const WidenWork &W, llvm::IRBuilder<> &B,
                       const LaneBlock &Block, unsigned Lanes);

/// A loop over the lanes of an i<lanes> mask, in which \p Body writes what is
/// done with one of them, in one block.
void emitEachLane(const WidenWork &W, llvm::IRBuilder<> &B, llvm::Value *Mask,
                  llvm::function_ref<void(llvm::Value *Lane)> Body);

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
