//===- Preserved.cpp - What a module pass leaves valid --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The analyses that survive a pass that changes some functions of a module.
//
//===----------------------------------------------------------------------===//

#include "Preserved.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/IR/GlobalValue.h"
#include "llvm/IR/Instruction.h"

using namespace llvm;

PreservedAnalyses udf::preservedFunctions() {
  PreservedAnalyses PA;
  PA.preserve<FunctionAnalysisManagerModuleProxy>();
  PA.preserveSet<AllAnalysesOn<Function>>();
  return PA;
}

PreservedAnalyses udf::preservedBut(ArrayRef<Function *> Changed,
                                    FunctionAnalysisManager &FAM) {
  SetVector<Function *> Stale(Changed.begin(), Changed.end());
  SmallVector<const User *, 32> Users;
  for (const Function *F : Changed)
    append_range(Users, F->users());
  while (!Users.empty()) {
    const User *U = Users.pop_back_val();
    if (const auto *I = dyn_cast<Instruction>(U))
      Stale.insert(const_cast<Function *>(I->getFunction()));
    else if (!isa<GlobalValue>(U))
      append_range(Users, U->users());
  }
  for (Function *F : Stale)
    FAM.invalidate(*F, PreservedAnalyses::none());
  return preservedFunctions();
}
