//===- ReplaceCheck.cpp - Whether forms fit their targets -----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Compares what the map promises with what the bitcode defines, in names, types
// and what the CPU of the module can run.
//
//===----------------------------------------------------------------------===//

#include "ReplaceCheck.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"

using namespace llvm;
using udf::Binding;
using udf::IntrinsicBinding;
using udf::ReplaceRun;
using udf::ReplaceWork;
using udf::shape;

/// Whether a form permutes registers (udf-tables) in a way that the CPU of the
/// module cannot. Everything else in a form can be compiled for any CPU.
static bool cpuLacks(const ReplaceRun &R, const ReplaceWork &W,
                     const Function &Form) {
  for (const Instruction &I : instructions(Form)) {
    const auto *Call = dyn_cast<IntrinsicInst>(&I);
    if (!W.Model || !Call)
      continue;
    StringRef Name = Call->getCalledFunction()->getName();
    for (auto [Prefix, Features] :
         {std::pair{"llvm.x86.avx512.", "+avx512f"}, {"llvm.x86.avx", "+avx2"}})
      if (Name.starts_with(Prefix) &&
          !udf::hasFeatures(*const_cast<Function *>(W.Model), Features, R.FAM))
        return true;
  }
  return false;
}

bool udf::variantFits(const ReplaceRun &R, const ReplaceWork &W,
                      const Function &Variant, const Function &Scalar) {
  auto *VecTy = dyn_cast<FixedVectorType>(Variant.getReturnType());
  return VecTy && VecTy->getElementType() == Scalar.getReturnType() &&
         VecTy->getPrimitiveSizeInBits() <= W.RegisterBits &&
         !cpuLacks(R, W, Variant) && Variant.arg_size() == Scalar.arg_size() &&
         all_of(Variant.args(),
                [&](const Argument &A) { return A.getType() == VecTy; });
}

bool udf::checkBitcode(ReplaceRun &R, const ReplaceWork &W, const Module &Src) {
  for (StringRef Name : W.Needed) {
    const Function *F = Src.getFunction(Name);
    if (F && !F->isDeclaration())
      continue;
    std::string Has;
    for (const Function &G : Src)
      if (!G.isDeclaration() && G.getName().starts_with("__udf_") &&
          !G.hasLocalLinkage())
        Has += (Has.empty() ? "" : ", ") + G.getName().str();
    R.fail("udf-replace: bitcode '" + R.Map.Bitcode +
           "' defines no function '" + Name +
           "', which the map names; it defines " +
           (Has.empty() ? "no form of a UDF" : Has));
  }
  if (R.Failed)
    return false;

  auto Mismatch = [&](const Twine &Target, const FunctionType *Want,
                      const Function &Form) {
    R.fail("udf-replace: '" + Target + "' has the type " + udf::typeName(Want) +
           " but its replacement '" + Form.getName() + "' has " +
           udf::typeName(Form.getFunctionType()) +
           "; bind it to a form of the same type");
  };
  auto CheckCpu = [&](const Function &Form) {
    if (cpuLacks(R, W, Form))
      R.fail(
          "udf-replace: '" + Form.getName() + "' of bitcode '" + R.Map.Bitcode +
          "' permutes registers in a way that the CPU of module '" +
          R.M.getName() + "' lacks; use the bitcode of a lower CPU level or " +
          "compile for a newer CPU (-march=x86-64-v3, -march=x86-64-v4)");
  };
  for (const Binding &B : W.Bindings) {
    const Function &Form = *Src.getFunction(B.Replacement);
    CheckCpu(Form);
    if (B.Target->getFunctionType() != Form.getFunctionType())
      Mismatch(B.Target->getName(), B.Target->getFunctionType(), Form);
    else if (B.Target->getCallingConv() != Form.getCallingConv())
      R.fail("udf-replace: '" + B.Target->getName() +
             "' and its replacement '" + Form.getName() +
             "' have different calling conventions; bind it " +
             "to a form of the same ABI");
  }
  for (const IntrinsicBinding &B : W.IntrinsicBindings) {
    auto Shape = *shape(B.Target->getReturnType());
    for (const auto &[Lanes, Name] : B.Forms) {
      const Function &Form = *Src.getFunction(Name);
      CheckCpu(Form);
      Type *T =
          Lanes == 1 ? Shape.first : FixedVectorType::get(Shape.first, Lanes);
      FunctionType *Want = FunctionType::get(
          T, SmallVector<Type *, 3>(B.Target->arg_size(), T), false);
      if (Form.getFunctionType() != Want)
        Mismatch(B.Group->ByLanes.find(Lanes)->second.first, Want, Form);
    }
  }
  return !R.Failed;
}

void udf::warnOfMissingFma(const ReplaceRun &R, const ReplaceWork &W,
                           ArrayRef<Function *> Forms) {
  auto IsFma = [](const Instruction &I) {
    const auto *Call = dyn_cast<IntrinsicInst>(&I);
    return Call && Call->getIntrinsicID() == Intrinsic::fma;
  };
  for (Function *F : Forms)
    if (W.FmaIsSlow && any_of(instructions(*F), IsFma))
      udf::usageWarning(
          R.Ctx,
          "udf-replace: '" + F->getName() +
              "' uses fused multiply-adds, which the CPU of module '" +
              R.M.getName() +
              "' lacks, so each becomes a call of fma; use the bitcode of "
              "a lower CPU level or compile for a newer CPU "
              "(-march=x86-64-v3)");
}
