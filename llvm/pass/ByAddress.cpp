//===- ByAddress.cpp - Structures given by address ------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-by-address: hands structures to functions of a module by address.
//
// In C a structure may be an argument. Clang makes it a pointer with the
// attribute byval: the callee has a copy of its own. The LLVM of Triton 3.6
// ends the process when it compiles such a parameter for a GPU with the short
// pointers that Triton asks for. Here the caller makes the copy and passes its
// address, which means the same.
//
//===----------------------------------------------------------------------===//

#include "ByAddress.h"
#include "Preserved.h"
#include "Usage.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/ModRef.h"

#define DEBUG_TYPE "udf-by-address"

using namespace llvm;

STATISTIC(NumParameters, "Number of parameters changed");

/// The calls of \p F, or nothing if something else is done with it: a function
/// that others may call keeps what they know of it.
static bool findCalls(Function &F, SmallVectorImpl<CallInst *> &Calls) {
  for (Use &U : F.uses()) {
    auto *Call = dyn_cast<CallInst>(U.getUser());
    if (!Call || !Call->isCallee(&U) || Call->isMustTailCall() ||
        Call->getFunctionType() != F.getFunctionType())
      return false;
    Calls.push_back(Call);
  }
  return true;
}

/// Lets \p Call pass the address of a copy as argument \p Index.
static void copyAt(CallInst &Call, unsigned Index, Type *T, Align Alignment) {
  const DataLayout &Layout = Call.getModule()->getDataLayout();
  BasicBlock &Entry = Call.getFunction()->getEntryBlock();
  IRBuilder<> AtEntry(&Entry, Entry.begin());
  AllocaInst *Copy = AtEntry.CreateAlloca(T);
  Copy->setAlignment(Alignment);
  IRBuilder<> B(&Call);
  Value *From = Call.getArgOperand(Index);
  B.CreateMemCpy(Copy, Alignment, From, Call.getParamAlign(Index),
                 Layout.getTypeAllocSize(T).getFixedValue());
  Call.setArgOperand(Index, Copy);
  Call.removeParamAttr(Index, Attribute::ByVal);
  // The callee reads memory of its caller.
  Call.setTailCallKind(CallInst::TCK_None);
  Call.setMemoryEffects(Call.getMemoryEffects() | MemoryEffects::argMemOnly());
}

static unsigned change(Function &F, ArrayRef<CallInst *> Calls) {
  const DataLayout &Layout = F.getParent()->getDataLayout();
  unsigned Changed = 0;
  for (Argument &A : F.args()) {
    Type *T = A.getParamByValType();
    if (!T)
      continue;
    const Align Alignment =
        A.getParamAlign().value_or(Layout.getPrefTypeAlign(T));
    for (CallInst *Call : Calls)
      copyAt(*Call, A.getArgNo(), T, Alignment);
    A.removeAttr(Attribute::ByVal);
    ++Changed;
  }
  if (Changed != 0)
    F.setMemoryEffects(F.getMemoryEffects() | MemoryEffects::argMemOnly());
  return Changed;
}

static void runImpl(Module &M, SmallSetVector<Function *, 8> &Changed) {
  for (Function &F : M) {
    SmallVector<CallInst *, 8> Calls;
    if (F.isDeclaration() || !F.hasLocalLinkage() ||
        none_of(F.args(), [](Argument &A) { return A.hasByValAttr(); }) ||
        !findCalls(F, Calls))
      continue;
    const unsigned Count = change(F, Calls);
    LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << F.getName() << ": " << Count
                      << '\n');
    NumParameters += Count;
    Changed.insert(&F);
    for (CallInst *Call : Calls)
      Changed.insert(Call->getFunction());
    udf::reportLine(M.getContext(), json::Object{{"pass", DEBUG_TYPE},
                                                 {"module", M.getName()},
                                                 {"function", F.getName()},
                                                 {"parameters", Count}});
  }
}

PreservedAnalyses udf::ByAddressPass::run(Module &M,
                                          ModuleAnalysisManager &MAM) {
  SmallSetVector<Function *, 8> Changed;
  runImpl(M, Changed);
  if (Changed.empty())
    return PreservedAnalyses::all();
  // Copies are straight-line code: the graphs of blocks stay.
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  PreservedAnalyses OfBlocks;
  OfBlocks.preserveSet<CFGAnalyses>();
  for (Function *F : Changed)
    FAM.invalidate(*F, OfBlocks);
  return preservedFunctions();
}
