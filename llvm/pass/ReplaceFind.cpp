//===- ReplaceFind.cpp - Targets of udf-replace in a module ---------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Finds which targets of the map a module defines or uses, and which forms its
// CPU can be given.
//
//===----------------------------------------------------------------------===//

#include "Compat.h"
#include "ReplaceWork.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/Instructions.h"

using namespace llvm;
using udf::Binding;
using udf::IntrinsicBinding;
using udf::isForeignUse;
using udf::KeepMark;
using udf::LinkedMark;
using udf::ReplacedMark;
using udf::ReplaceRun;
using udf::ReplaceWork;
using udf::shape;

bool udf::isUdfCode(const Instruction &I) {
  if (I.getFunction()->hasFnAttribute(LinkedMark))
    return true;
  const auto *Call = dyn_cast<CallBase>(&I);
  return Call && Call->getAttributes().hasFnAttr(KeepMark);
}

bool udf::isForeignUse(const Use &U) {
  const auto *I = dyn_cast<Instruction>(U.getUser());
  return !I || !isUdfCode(*I);
}

std::optional<std::pair<Type *, unsigned>> udf::shape(Type *T) {
  unsigned Lanes = 1;
  if (auto *Vector = dyn_cast<FixedVectorType>(T)) {
    Lanes = Vector->getNumElements();
    T = Vector->getElementType();
  }
  if (!T->isFloatTy() && !T->isDoubleTy())
    return std::nullopt;
  return std::pair{T, Lanes};
}

/// The type that an intrinsic's name ends in: ".f32", ".v16f64".
static std::optional<std::pair<Type *, unsigned>> suffixShape(LLVMContext &Ctx,
                                                              StringRef Name) {
  StringRef Suffix = Name.rsplit('.').second;
  unsigned Lanes = 1;
  if (Suffix.consume_front("v") && Suffix.consumeInteger(10, Lanes))
    return std::nullopt;
  if (Suffix == "f32")
    return std::pair{Type::getFloatTy(Ctx), Lanes};
  if (Suffix == "f64")
    return std::pair{Type::getDoubleTy(Ctx), Lanes};
  return std::nullopt;
}

static void findFunction(ReplaceRun &R, ReplaceWork &W, const std::string &Name,
                         const std::string &Replacement) {
  GlobalValue *Value = R.M.getNamedValue(Name);
  if (!Value)
    return;
  auto *F = dyn_cast<Function>(Value);
  if (!F) {
    R.fail(
        "udf-replace: target '" + Name + "' is " +
        (isa<GlobalVariable>(Value) ? "a variable" : "an alias") +
        " in module '" + R.M.getName() +
        "', and only functions can be replaced; drop it from the map or name "
        "the function behind it");
    return;
  }
  if (F->hasFnAttribute(LinkedMark) || F->hasFnAttribute(ReplacedMark))
    return;
  // The body of an available_externally function is a copy for the inliner;
  // the module holds no more than a declaration of it.
  bool NewBody = !F->isDeclaration() && !F->hasAvailableExternallyLinkage();
  if (!NewBody && none_of(F->uses(), isForeignUse))
    return;
  W.Bindings.push_back({F, Replacement, NewBody});
  W.Needed.insert(R.Map.Targets.find(Name)->second);
}

static void findIntrinsics(ReplaceRun &R, ReplaceWork &W) {
  for (Function &F : R.M) {
    if (!F.isIntrinsic() || none_of(F.uses(), isForeignUse))
      continue;
    auto Shape = shape(F.getReturnType());
    if (!Shape)
      continue;
    auto Found = W.Groups.find({F.getIntrinsicID(), Shape->first});
    if (Found == W.Groups.end())
      continue;
    // Only what works lane by lane on the result's type can be cut to pieces.
    if (!all_of(F.args(), [&](const Argument &A) {
          return A.getType() == F.getReturnType();
        })) {
      auto Exact = Found->second.ByLanes.find(Shape->second);
      if (Exact != Found->second.ByLanes.end())
        R.fail("udf-replace: intrinsic '" + F.getName() + "' has the type " +
               udf::typeName(F.getFunctionType()) + ", which '" +
               Exact->second.second + "' cannot have; drop it from the map");
      continue;
    }
    W.IntrinsicBindings.push_back({&F, &Found->second, {}});
  }
}

/// Whether the CPU has no fused multiply-add, so that one is a library call.
static bool fmaIsSlow(const TargetTransformInfo &TTI, LLVMContext &Ctx) {
  Type *T = Type::getDoubleTy(Ctx);
  InstructionCost Multiply = TTI.getArithmeticInstrCost(Instruction::FMul, T);
  InstructionCost Fused = TTI.getIntrinsicInstrCost(
      IntrinsicCostAttributes(Intrinsic::fma, T, {T, T, T}),
      TargetTransformInfo::TCK_RecipThroughput);
  return Fused > 4 * Multiply;
}

/// Finds a function that stands for the CPU of the module.
static void findModel(const ReplaceRun &R, ReplaceWork &W) {
  for (const Binding &B : W.Bindings) {
    if (B.NewBody)
      W.Model = B.Target;
    for (const Use &U : B.Target->uses())
      if (const auto *I = dyn_cast<Instruction>(U.getUser()); I && !W.Model)
        W.Model = I->getFunction();
  }
  for (const IntrinsicBinding &B : W.IntrinsicBindings)
    for (const Use &U : B.Target->uses())
      if (!W.Model)
        W.Model = cast<Instruction>(U.getUser())->getFunction();
  for (const Function &F : R.M)
    if (!W.Model && !F.isDeclaration())
      W.Model = &F;
}

void udf::findWork(ReplaceRun &R, ReplaceWork &W) {
  for (const auto &[Name, Replacement] : R.Map.Targets) {
    if (!StringRef(Name).starts_with("llvm.")) {
      findFunction(R, W, Name, Replacement);
      continue;
    }
    Intrinsic::ID ID = udf::compat::lookupIntrinsic(Name);
    auto Shape = suffixShape(R.Ctx, Name);
    if (ID == Intrinsic::not_intrinsic || !Shape) {
      R.fail(
          "udf-replace: target '" + Name +
          "' is no LLVM intrinsic on float or double; write it as in IR, for "
          "instance llvm.exp.f32 or llvm.exp.v16f32");
      continue;
    }
    W.Groups[{ID, Shape->first}].ByLanes[Shape->second] = {Name, Replacement};
  }
  findIntrinsics(R, W);

  findModel(R, W);
  if (W.empty())
    return;
  if (W.Model) {
    W.RegisterBits = udf::widestRegisterBits(*W.Model, R.FAM);
    W.FmaIsSlow = fmaIsSlow(
        R.FAM.getResult<TargetIRAnalysis>(const_cast<Function &>(*W.Model)),
        R.Ctx);
  }

  // A form wider than the CPU's registers has another ABI there.
  for (IntrinsicBinding &B : W.IntrinsicBindings) {
    Type *Element = shape(B.Target->getReturnType())->first;
    for (const auto &[Lanes, Names] : B.Group->ByLanes)
      if (Lanes == 1 ||
          Lanes * Element->getPrimitiveSizeInBits() <= W.RegisterBits) {
        B.Forms[Lanes] = Names.second;
        W.Needed.insert(Names.second);
      }
  }
  erase_if(W.IntrinsicBindings,
           [](const IntrinsicBinding &B) { return B.Forms.empty(); });
}
