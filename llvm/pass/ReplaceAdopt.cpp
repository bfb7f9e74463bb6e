//===- ReplaceAdopt.cpp - UDF code joins a module -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Gives functions of the bitcode the CPU of the module, keeps what they
// compute, and marks them and their calls.
//
//===----------------------------------------------------------------------===//

#include "ReplaceAdopt.h"
#include "Compat.h"
#include "Target.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/TargetParser/Triple.h"

using namespace llvm;
using udf::KeepMark;
using udf::LinkedMark;
using udf::ReplaceRun;
using udf::ReplaceWork;

/// Whether the optimiser may turn a call into one of another math function or
/// of another width, which then bears no mark.
static bool mayChangeItsName(const CallBase &Call) {
  const Function *Callee = Call.getCalledFunction();
  if (!Callee)
    return true;
  switch (Callee->getIntrinsicID()) {
  case Intrinsic::not_intrinsic:
    return Callee->isDeclaration();
  case Intrinsic::arithmetic_fence:
  case Intrinsic::fma:
  case Intrinsic::fmuladd:
  case Intrinsic::fabs:
  case Intrinsic::copysign:
  case Intrinsic::sqrt:
  case Intrinsic::floor:
  case Intrinsic::ceil:
  case Intrinsic::trunc:
  case Intrinsic::rint:
  case Intrinsic::nearbyint:
  case Intrinsic::round:
  case Intrinsic::roundeven:
  case Intrinsic::minnum:
  case Intrinsic::maxnum:
  case Intrinsic::minimum:
  case Intrinsic::maximum:
    return false;
  default:
    // The target's own intrinsics are instructions, not functions of math.
    return !Callee->getName().starts_with("llvm.x86.") &&
           Callee->doesNotAccessMemory() &&
           Callee->getReturnType()->isFPOrFPVectorTy();
  }
}

/// Whether a product is added to something, or something is taken from it.
static bool isSummed(const Instruction &Product) {
  return any_of(Product.users(), [](const User *U) {
    const auto *I = dyn_cast<Instruction>(U);
    return I && (I->getOpcode() == Instruction::FAdd ||
                 I->getOpcode() == Instruction::FSub ||
                 (I->getOpcode() == Instruction::FNeg && isSummed(*I)));
  });
}

/// Keeps the code generator from fusing a product with a sum. Whether it may
/// (-ffp-contract=fast) is a setting of the whole module that UDF code joins,
/// and no attribute takes a function out of it.
static void forbidContraction(Function &F, const Triple &Target) {
  SmallVector<Instruction *, 16> Products;
  for (Instruction &I : instructions(F))
    if (I.getOpcode() == Instruction::FMul && isSummed(I))
      Products.push_back(&I);
  for (Instruction *Product : Products) {
    IRBuilder<> B(Product->getNextNode());
    Type *T = Product->getType();
    if (Target.isNVPTX() && udf::compat::NvvmProductsStayApart &&
        (T->isFloatTy() || T->isDoubleTy())) {
      // The assembler behind LLVM fuses too, unless the rounding is spelled.
      Value *Rounded = B.CreateIntrinsic(
          T->isFloatTy() ? Intrinsic::nvvm_mul_rn_f : Intrinsic::nvvm_mul_rn_d,
          {}, {Product->getOperand(0), Product->getOperand(1)});
      Product->replaceAllUsesWith(Rounded);
      Rounded->takeName(Product);
      Product->eraseFromParent();
      continue;
    }
    CallInst *Fence =
        B.CreateIntrinsic(Intrinsic::arithmetic_fence, {T}, {Product});
    Product->replaceUsesWithIf(Fence,
                               [&](Use &U) { return U.getUser() != Fence; });
  }
}

void udf::adopt(const ReplaceRun &R, const ReplaceWork &W, Function &F) {
  F.addFnAttr(LinkedMark);
  if (W.Model)
    udf::copyTarget(*W.Model, F);
  if (!W.FmaIsSlow)
    forbidContraction(F, Triple(R.M.getTargetTriple()));
  bool Pinned = false;
  for (Instruction &I : instructions(F))
    if (auto *Call = dyn_cast<CallBase>(&I)) {
      Call->addFnAttr(Attribute::get(R.Ctx, KeepMark));
      Pinned |= mayChangeItsName(*Call);
    }
  // The function's own mark is the only one that such calls cannot lose, so
  // they stay in it until the last run of the pass is over.
  if (Pinned) {
    F.removeFnAttr(Attribute::AlwaysInline);
    F.addFnAttr(Attribute::NoInline);
  }
}
