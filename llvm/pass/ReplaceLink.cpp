//===- ReplaceLink.cpp - UDF bitcode in a module --------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Brings the forms of UDFs out of the bitcode into a module, where they are
// internal, compute what they compute elsewhere, and bear the marks by which
// later runs know them.
//
//===----------------------------------------------------------------------===//

#include "Compat.h"
#include "ReplaceWork.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Linker/Linker.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"

#define DEBUG_TYPE "udf-replace"

using namespace llvm;
using udf::Binding;
using udf::BoundMark;
using udf::IntrinsicBinding;
using udf::KeepMark;
using udf::LinkedMark;
using udf::ReplaceRun;
using udf::ReplaceWork;
using udf::shape;

STATISTIC(NumLinked, "Number of forms linked");

static std::unique_ptr<Module> loadBitcode(ReplaceRun &R) {
  SMDiagnostic Error;
  std::unique_ptr<Module> Src = parseIRFile(R.Map.Bitcode, Error, R.Ctx);
  if (!Src) {
    R.fail("udf-replace: bitcode '" + R.Map.Bitcode +
           "' cannot be read: " + Error.getMessage() +
           "; it must be LLVM IR of a version that this compiler reads");
    return nullptr;
  }
  Triple From(Src->getTargetTriple()), To(R.M.getTargetTriple());
  if (From.getArch() != To.getArch() && From.getArch() != Triple::UnknownArch &&
      To.getArch() != Triple::UnknownArch) {
    R.fail("udf-replace: bitcode '" + R.Map.Bitcode + "' is for " + From.str() +
           " but module '" + R.M.getName() + "' is for " + To.str() +
           "; build the UDF library for that target");
    return nullptr;
  }
  // The linker warns about triples that differ in the vendor only.
  Src->setTargetTriple(R.M.getTargetTriple());
  Src->setDataLayout(R.M.getDataLayout());
  // Whatever the library's own build kept alive need not live in this module.
  for (const char *Name : {"llvm.used", "llvm.compiler.used"})
    if (GlobalVariable *List = Src->getNamedGlobal(Name))
      List->eraseFromParent();
  return Src;
}

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

/// Makes a function of the bitcode ready to join the module.
static void adopt(const ReplaceRun &R, const ReplaceWork &W, Function &F) {
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

Function *udf::linkedForm(const Module &M, StringRef Name) {
  Function *F = M.getFunction(Name);
  return F && !F->isDeclaration() && F->hasFnAttribute(LinkedMark) ? F
                                                                   : nullptr;
}

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

static bool variantFits(const ReplaceRun &R, const ReplaceWork &W,
                        const Function &Variant, const Function &Scalar) {
  auto *VecTy = dyn_cast<FixedVectorType>(Variant.getReturnType());
  return VecTy && VecTy->getElementType() == Scalar.getReturnType() &&
         VecTy->getPrimitiveSizeInBits() <= W.RegisterBits &&
         !cpuLacks(R, W, Variant) && Variant.arg_size() == Scalar.arg_size() &&
         all_of(Variant.args(),
                [&](const Argument &A) { return A.getType() == VecTy; });
}

/// Whether the bitcode has what the map promises, in the types of the targets.
static bool check(ReplaceRun &R, const ReplaceWork &W, const Module &Src) {
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

/// Fused multiply-adds of the bitcode become library calls on a CPU that has
/// none.
static void warnOfMissingFma(const ReplaceRun &R, const ReplaceWork &W,
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

/// Finds the vector forms beside the scalar ones that are needed; the
/// vectorisers may then use them.
static SmallVector<std::string, 8>
findVariants(ReplaceRun &R, const ReplaceWork &W, const Module &Src) {
  SmallVector<std::string, 8> Found;
  if (R.Stage == ReplaceRun::Stages::Whole || !R.Optimizing)
    return Found;
  for (StringRef Name : W.Needed) {
    const Function &Scalar = *Src.getFunction(Name);
    if (!Scalar.getReturnType()->isFloatingPointTy())
      continue;
    for (unsigned Lanes = 2; Lanes <= 64; Lanes *= 2) {
      std::string Variant = (Name + "_v" + Twine(Lanes)).str();
      const Function *V = Src.getFunction(Variant);
      if (V && !V->isDeclaration() && variantFits(R, W, *V, Scalar)) {
        R.Variants[Name.str()].push_back({Lanes, Variant});
        Found.push_back(Variant);
      }
    }
  }
  return Found;
}

/// Leaves a claim on the module's names to nothing but what is wanted.
static void internalizeOthers(Module &Src, const SetVector<StringRef> &Wanted) {
  for (GlobalValue &G : Src.global_values())
    if (!G.isDeclaration() && !Wanted.contains(G.getName())) {
      G.setLinkage(GlobalValue::InternalLinkage);
      G.setVisibility(GlobalValue::DefaultVisibility);
      if (auto *Object = dyn_cast<GlobalObject>(&G))
        Object->setComdat(nullptr);
    }
}

/// Declares in the module those of the wanted functions that it lacks, and
/// returns their names.
static SmallVector<std::string, 8>
declareForms(ReplaceRun &R, const Module &Src,
             const SetVector<StringRef> &Wanted) {
  SmallVector<std::string, 8> Missing;
  for (StringRef Name : Wanted) {
    const Function &In = *Src.getFunction(Name);
    Function *Old = R.M.getFunction(Name);
    if (Old && !Old->isDeclaration()) {
      // An earlier run of the pass may have left it; between the runs the
      // optimiser may have changed an internal function's signature.
      if (Old->hasFnAttribute(LinkedMark)) {
        if (Old->getFunctionType() == In.getFunctionType() &&
            Old->getCallingConv() == In.getCallingConv())
          continue;
        Old->setName(Name + ".old");
      } else {
        R.fail("udf-replace: module '" + R.M.getName() + "' defines '" + Name +
               "' itself; rename that function, or leave this module out of "
               "the replacement");
        return {};
      }
    }
    R.M.getOrInsertFunction(Name, In.getFunctionType());
    Missing.push_back(Name.str());
  }
  return Missing;
}

/// Makes a linked form internal, and says who may inline it.
static void settleForm(const ReplaceRun &R, Function &F) {
  F.setComdat(nullptr);
  F.setLinkage(GlobalValue::InternalLinkage);
  F.setVisibility(GlobalValue::DefaultVisibility);
  F.setDSOLocal(true);
  F.addFnAttr(BoundMark);
  if (!R.Optimizing || F.getReturnType()->isVoidTy())
    return;
  if (R.Variants.count(F.getName().str()) &&
      R.Stage != ReplaceRun::Stages::Late)
    F.addFnAttr(Attribute::NoInline);
  else if (!F.hasFnAttribute(Attribute::NoInline))
    F.addFnAttr(Attribute::AlwaysInline);
}

void udf::linkForms(ReplaceRun &R, const ReplaceWork &W) {
  std::unique_ptr<Module> Src = loadBitcode(R);
  if (!Src || !check(R, W, *Src))
    return;
  const SmallVector<std::string, 8> Variants = findVariants(R, W, *Src);
  SetVector<StringRef> Wanted(W.Needed.begin(), W.Needed.end());
  Wanted.insert(Variants.begin(), Variants.end());
  internalizeOthers(*Src, Wanted);
  for (Function &F : *Src)
    if (!F.isDeclaration())
      adopt(R, W, F);
  const SmallVector<std::string, 8> Missing = declareForms(R, *Src, Wanted);
  if (R.Failed)
    return;
  SmallVector<Function *, 8> Forms;
  if (!Missing.empty()) {
    if (Linker::linkModules(R.M, std::move(Src), Linker::LinkOnlyNeeded)) {
      R.fail("udf-replace: linking '" + R.Map.Bitcode + "' into module '" +
             R.M.getName() + "' failed");
      return;
    }
    for (const std::string &Name : Missing) {
      LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": links " << Name << '\n');
      Forms.push_back(R.M.getFunction(Name));
      settleForm(R, *Forms.back());
    }
    NumLinked += Forms.size();
    R.Changed = true;
  }
  SmallVector<GlobalValue *, 8> Alive;
  if (R.Stage != ReplaceRun::Stages::Late)
    for (const std::string &Name : Variants)
      if (Function *F = linkedForm(R.M, Name))
        Alive.push_back(F);
  if (!Alive.empty())
    appendToCompilerUsed(R.M, Alive);
  warnOfMissingFma(R, W, Forms);
}
