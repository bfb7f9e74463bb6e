//===- Inline.cpp - UDFs inlined after the vectorisers --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-inline: inlines the forms that udf-replace kept as calls.
//
// The forms stay calls until the vectorisers have seen them. Then the vector
// form's constants can leave the loop, and its caller's values stay in
// registers, only when it is inlined.
//
//===----------------------------------------------------------------------===//

#include "Inline.h"
#include "Preserved.h"
#include "ReplaceWork.h"

#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"

#define DEBUG_TYPE "udf-inline"

using namespace llvm;
using udf::BoundMark;
using udf::LinkedMark;

STATISTIC(NumInlined, "Number of UDF calls inlined after the vectorisers");

static cl::opt<unsigned> InlineLimit(
    "udf-inline-limit", cl::Hidden, cl::init(1000),
    cl::desc("Largest UDF, in IR instructions, inlined after the vectorisers"));

/// The calls of a form that are to be inlined.
static SmallVector<CallBase *, 16> findCalls(Function &Form,
                                             FunctionAnalysisManager &FAM) {
  SmallVector<CallBase *, 16> Calls;
  for (User *U : Form.users())
    if (auto *Call = dyn_cast<CallBase>(U);
        Call && Call->getCalledFunction() == &Form) {
      Function *Caller = Call->getFunction();
      if (!Caller->hasFnAttribute(LinkedMark) && !Caller->hasOptNone() &&
          !Caller->hasMinSize() && !Call->isNoInline() &&
          FAM.getResult<TargetIRAnalysis>(*Caller).areInlineCompatible(Caller,
                                                                       &Form))
        Calls.push_back(Call);
    }
  return Calls;
}

/// Tidies a function up that forms were inlined into.
static void cleanUp(Function &Caller, FunctionAnalysisManager &FAM) {
  FAM.invalidate(Caller, PreservedAnalyses::none());
  FunctionPassManager Cleanup;
  Cleanup.addPass(EarlyCSEPass(/*UseMemorySSA=*/true));
  Cleanup.addPass(InstCombinePass());
  Cleanup.addPass(createFunctionToLoopPassAdaptor(LICMPass(LICMOptions()),
                                                  /*UseMemorySSA=*/true));
  Cleanup.addPass(SimplifyCFGPass());
  Cleanup.run(Caller, FAM);
}

/// Returns whether the module was changed. \p Changed receives the functions
/// that were changed and are still there.
static bool runImpl(Module &M, FunctionAnalysisManager &FAM, bool Optimizing,
                    SetVector<Function *> &Changed) {
  SetVector<Function *> Forms, Callers;
  for (Function &F : M)
    if (F.hasFnAttribute(BoundMark) && !F.isDeclaration())
      Forms.insert(&F);
  if (Forms.empty())
    return false;
  removeFromUsedLists(M, [&](Constant *C) {
    auto *F = dyn_cast<Function>(C->stripPointerCasts());
    return F && Forms.contains(F);
  });
  for (Function *Form : Forms) {
    if (!Optimizing || Form->getReturnType()->isVoidTy() ||
        Form->getInstructionCount() > InlineLimit)
      continue;
    Form->removeFnAttr(Attribute::NoInline); // set by the first run
    for (CallBase *Call : findCalls(*Form, FAM)) {
      Function *Caller = Call->getFunction();
      LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << Form->getName() << " into "
                        << Caller->getName() << '\n');
      InlineFunctionInfo Info;
      if (InlineFunction(*Call, Info, /*MergeAttributes=*/true).isSuccess()) {
        Callers.insert(Caller);
        ++NumInlined;
      }
    }
  }
  for (Function *Form : Forms)
    if (Form->use_empty()) {
      FAM.clear(*Form, Form->getName());
      Form->eraseFromParent();
    } else {
      Changed.insert(Form);
    }
  for (Function *Caller : Callers)
    cleanUp(*Caller, FAM);
  Changed.insert(Callers.begin(), Callers.end());
  return true;
}

PreservedAnalyses udf::InlinePass::run(Module &M, ModuleAnalysisManager &MAM) {
  if (replaceMapPath().empty())
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  SetVector<Function *> Changed;
  return runImpl(M, FAM, Optimizing, Changed)
             ? preservedBut(Changed.getArrayRef(), FAM)
             : PreservedAnalyses::all();
}
