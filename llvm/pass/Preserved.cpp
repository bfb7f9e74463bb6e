//===- Preserved.cpp - What a module pass leaves valid --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The analyses that survive a pass that changes some functions of a module.
//
//===----------------------------------------------------------------------===//

#include "Preserved.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/Instruction.h"

using namespace llvm;

PreservedAnalyses udf::preservedBut(ArrayRef<Function *> Changed,
                                    FunctionAnalysisManager &FAM) {
  if (Changed.empty())
    return PreservedAnalyses::all();
  SetVector<Function *> Stale(Changed.begin(), Changed.end());
  for (const Function *F : Changed)
    for (const User *U : F->users())
      if (const auto *I = dyn_cast<Instruction>(U))
        Stale.insert(const_cast<Function *>(I->getFunction()));
  for (Function *F : Stale)
    FAM.invalidate(*F, PreservedAnalyses::none());
  PreservedAnalyses PA;
  PA.preserve<FunctionAnalysisManagerModuleProxy>();
  PA.preserveSet<AllAnalysesOn<Function>>();
  return PA;
}
