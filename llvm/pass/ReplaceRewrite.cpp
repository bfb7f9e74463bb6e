//===- ReplaceRewrite.cpp - Uses of targets become uses of forms ----------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Bodies, calls, addresses and calls of intrinsics that the map names come to
// use the linked forms.
//
//===----------------------------------------------------------------------===//

#include "Compat.h"
#include "ReplaceWork.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/OptimizationRemarkEmitter.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/ModRef.h"
#include "llvm/Transforms/Utils/Cloning.h"

#define DEBUG_TYPE "udf-replace"

using namespace llvm;
using udf::Binding;
using udf::IntrinsicBinding;
using udf::isForeignUse;
using udf::isUdfCode;
using udf::LinkedMark;
using udf::ReplacedMark;
using udf::ReplaceRun;
using udf::ReplaceWork;
using udf::shape;

STATISTIC(NumBodies, "Number of function bodies replaced");
STATISTIC(NumCalls, "Number of calls redirected");
STATISTIC(NumAddresses, "Number of other uses redirected");
STATISTIC(NumIntrinsics, "Number of intrinsic calls replaced");

static constexpr StringLiteral VariantsAttribute =
    "vector-function-abi-variant";

namespace {

/// What was done for one target, for the report.
struct Tally {
  unsigned Bodies = 0, Calls = 0, Addresses = 0, Intrinsics = 0;
};

/// By target and replacement.
using Tallies = std::map<std::pair<std::string, std::string>, Tally>;

} // namespace

static void remark(const CallBase &Call, StringRef Target, StringRef Form) {
  LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << Target << " becomes " << Form
                    << " in " << Call.getFunction()->getName() << '\n');
  OptimizationRemarkEmitter ORE(Call.getFunction());
  ORE.emit([&] {
    return OptimizationRemark(DEBUG_TYPE, "Replaced", &Call)
           << "call of " << ore::NV("Target", Target) << " now calls "
           << ore::NV("Replacement", Form);
  });
}

static void attachVariants(const ReplaceRun &R, CallBase &Call,
                           const Function &Form) {
  // Mappings of the function that was called before must not outlive it.
  udf::compat::removeFnAttribute(Call, VariantsAttribute);
  if (R.Stage == ReplaceRun::Stages::Late || !isa<CallInst>(Call))
    return;
  auto Found = R.Variants.find(Form.getName().str());
  if (Found == R.Variants.end())
    return;
  std::string Names;
  for (const auto &[Lanes, Variant] : Found->second) {
    if (!udf::linkedForm(R.M, Variant))
      continue;
    // The vector function ABI's name of a mapping, with LLVM's own letter for
    // the instruction set: the lanes alone decide.
    Names += (Names.empty() ? "" : ",") +
             ("_ZGV_LLVM_N" + Twine(Lanes) + std::string(Form.arg_size(), 'v') +
              "_" + Form.getName() + "(" + Variant + ")")
                 .str();
  }
  if (!Names.empty())
    Call.addFnAttr(Attribute::get(R.Ctx, VariantsAttribute, Names));
}

/// The new body may do what the old one did not; what the optimiser or the
/// author said of the old one must hold for it too.
static void weakenAttributes(Function &F, const Function &Form) {
  F.setMemoryEffects(F.getMemoryEffects() | Form.getMemoryEffects());
  for (Attribute::AttrKind Kind :
       {Attribute::NoUnwind, Attribute::WillReturn, Attribute::NoRecurse,
        Attribute::NoSync, Attribute::NoFree, Attribute::NoReturn,
        Attribute::Speculatable})
    if (!Form.hasFnAttribute(Kind))
      F.removeFnAttr(Kind);
  F.removeFnAttr(Attribute::OptimizeNone);
  udf::compat::forgetReturnedClasses(F);
  for (Argument &A : F.args())
    for (Attribute::AttrKind Kind : {Attribute::ReadNone, Attribute::ReadOnly,
                                     Attribute::WriteOnly, Attribute::Returned})
      A.removeAttr(Kind);
}

static void replaceBody(ReplaceRun &R, Tally &T, Function &F, Function &Form) {
  // UDF code that calls the target means the function as it was.
  Function *Original = nullptr;
  if (any_of(F.uses(), [](const Use &U) { return !isForeignUse(U); })) {
    ValueToValueMapTy Values;
    Original = CloneFunction(&F, Values);
    Original->setName("__udf_original." + F.getName());
    Original->setLinkage(GlobalValue::InternalLinkage);
    Original->setComdat(nullptr);
    Original->setVisibility(GlobalValue::DefaultVisibility);
    Original->setDSOLocal(true);
    Original->addFnAttr(LinkedMark);
    F.replaceUsesWithIf(Original, [&](Use &U) {
      return !isForeignUse(U) &&
             cast<Instruction>(U.getUser())->getFunction() != Original;
    });
  }

  GlobalValue::LinkageTypes Linkage = F.getLinkage();
  Comdat *Group = F.getComdat();
  SmallVector<std::pair<unsigned, MDNode *>, 4> Metadata;
  F.getAllMetadata(Metadata);
  F.deleteBody();
  F.setLinkage(Linkage);
  F.setComdat(Group);
  F.clearMetadata();
  for (auto [Kind, Node] : Metadata)
    F.addMetadata(Kind, *Node);

  IRBuilder<> B(BasicBlock::Create(R.Ctx, "entry", &F));
  if (DISubprogram *Where = F.getSubprogram())
    B.SetCurrentDebugLocation(
        DILocation::get(R.Ctx, Where->getScopeLine(), 0, Where));
  SmallVector<Value *, 5> Args;
  for (Argument &A : F.args())
    Args.push_back(&A);
  CallInst *Call = B.CreateCall(&Form, Args);
  Call->setCallingConv(Form.getCallingConv());
  Call->setTailCall();
  attachVariants(R, *Call, Form);
  if (Form.getReturnType()->isVoidTy())
    B.CreateRetVoid();
  else
    B.CreateRet(Call);
  weakenAttributes(F, Form);
  F.addFnAttr(ReplacedMark, Form.getName());
  R.FAM.invalidate(F, PreservedAnalyses::none());
  remark(*Call, F.getName(), Form.getName());
  ++T.Bodies;
  ++NumBodies;
  R.Changed = true;
}

/// Whether two functions for the same CPU pass values of some types in the same
/// registers whatever width of vectors they prefer. It decides about 512 bits
/// alone, where LLVM's own answer is for vectors of any width.
static bool passAlike(const Function &A, const Function &B,
                      ArrayRef<Type *> Types) {
  for (const char *Name : {"target-cpu", "target-features"})
    if (A.getFnAttribute(Name) != B.getFnAttribute(Name))
      return false;
  return all_of(Types, [](Type *T) {
    return T->isVoidTy() || T->isPointerTy() ||
           (T->isSized() && T->getPrimitiveSizeInBits().getFixedValue() > 0 &&
            T->getPrimitiveSizeInBits().getFixedValue() <= 256);
  });
}

static void redirect(ReplaceRun &R, Tally &T, Function &Target,
                     Function &Form) {
  SmallVector<CallBase *, 16> Calls;
  for (Use &U : Target.uses()) {
    auto *Call = dyn_cast<CallBase>(U.getUser());
    if (Call && Call->isCallee(&U) && !isUdfCode(*Call)) {
      if (Call->getFunctionType() == Form.getFunctionType())
        Calls.push_back(Call);
      else
        R.fail("udf-replace: a call of '" + Target.getName() + "' in '" +
               Call->getFunction()->getName() + "' has the type " +
               udf::typeName(Call->getFunctionType()) +
               " but its replacement '" + Form.getName() + "' has " +
               udf::typeName(Form.getFunctionType()) +
               "; declare the function with its prototype");
    }
  }
  if (R.Failed)
    return;
  for (CallBase *Call : Calls) {
    const TargetTransformInfo &TTI =
        R.FAM.getResult<TargetIRAnalysis>(*Call->getFunction());
    SmallVector<Type *, 5> Types{Form.getReturnType()};
    append_range(Types, Form.getFunctionType()->params());
    if (!passAlike(*Call->getFunction(), Form, Types) &&
        !TTI.areTypesABICompatible(Call->getFunction(), &Form, Types)) {
      R.fail("udf-replace: '" + Call->getFunction()->getName() +
             "' is compiled for another CPU than the rest of module '" +
             R.M.getName() + "' and passes the vectors of '" +
             Target.getName() + "' in other registers than '" + Form.getName() +
             "' takes them; compile it in a module of its own");
      continue;
    }
    Call->setCalledOperand(&Form);
    R.Changed = true;
    attachVariants(R, *Call, Form);
    remark(*Call, Target.getName(), Form.getName());
    ++T.Calls;
    ++NumCalls;
  }
  Target.replaceUsesWithIf(&Form, [&](Use &U) {
    if (!isForeignUse(U))
      return false;
    ++T.Addresses;
    ++NumAddresses;
    return R.Changed = true;
  });
}

static Value *callForm(const ReplaceRun &R, IRBuilder<> &B, Function &Form,
                       ArrayRef<Value *> Args, const CallInst &Like) {
  SmallVector<OperandBundleDef, 1> Bundles;
  Like.getOperandBundlesAsDefs(Bundles);
  CallInst *Call = B.CreateCall(&Form, Args, Bundles);
  Call->setCallingConv(Form.getCallingConv());
  Call->setTailCallKind(Like.getTailCallKind());
  Call->copyMetadata(Like);
  Call->copyFastMathFlags(&Like);
  if (Call->getType() == Like.getType())
    Call->setAttributes(Like.getAttributes());
  attachVariants(R, *Call, Form);
  return Call;
}

static void rewriteIntrinsicCalls(ReplaceRun &R, Tallies &Done,
                                  const IntrinsicBinding &Binding) {
  Function &Target = *Binding.Target;
  auto Shape = *shape(Target.getReturnType());
  std::map<unsigned, Function *> Forms;
  for (const auto &[Lanes, Name] : Binding.Forms)
    Forms[Lanes] = R.M.getFunction(Name);

  SmallVector<CallInst *, 16> Calls;
  for (User *U : Target.users())
    if (auto *Call = dyn_cast<CallInst>(U); Call && !isUdfCode(*Call))
      Calls.push_back(Call);
  for (CallInst *Call : Calls) {
    IRBuilder<> B(Call);
    SmallVector<Value *, 3> Args(Call->args());
    Value *Result = nullptr;
    StringRef Used;
    if (auto Exact = Forms.find(Shape.second); Exact != Forms.end()) {
      Result = callForm(R, B, *Exact->second, Args, *Call);
      Used = Exact->second->getName();
    } else {
      // Pieces: the narrowest form that takes all that is left, or else the
      // widest there is. Spare lanes repeat the piece's first lane.
      auto *VecTy = dyn_cast<FixedVectorType>(Call->getType());
      Result = PoisonValue::get(Call->getType());
      for (unsigned Start = 0; Start < Shape.second;) {
        unsigned Left = Shape.second - Start;
        auto Piece = Forms.lower_bound(Left);
        if (Piece == Forms.end())
          --Piece;
        auto [Lanes, Form] = *Piece;
        Used = Form->getName();
        unsigned Live = std::min(Lanes, Left);
        SmallVector<Value *, 3> Parts;
        for (Value *Arg : Args) {
          if (Lanes == 1) {
            Parts.push_back(VecTy ? B.CreateExtractElement(Arg, Start) : Arg);
            continue;
          }
          if (!VecTy) {
            Parts.push_back(B.CreateVectorSplat(Lanes, Arg));
            continue;
          }
          SmallVector<int, 64> Mask(Lanes, static_cast<int>(Start));
          for (unsigned I = 0; I < Live; ++I)
            Mask[I] = static_cast<int>(Start + I);
          Parts.push_back(B.CreateShuffleVector(Arg, Mask));
        }
        Value *Y = callForm(R, B, *Form, Parts, *Call);
        if (!VecTy) {
          Result = Lanes == 1 ? Y : B.CreateExtractElement(Y, uint64_t(0));
        } else if (Lanes == 1) {
          Result = B.CreateInsertElement(Result, Y, Start);
        } else {
          SmallVector<int, 64> Spread(Shape.second, -1), Blend;
          for (unsigned I = 0; I < Live; ++I)
            Spread[Start + I] = static_cast<int>(I);
          Value *Wide = B.CreateShuffleVector(Y, Spread);
          for (unsigned I = 0; I < Shape.second; ++I)
            Blend.push_back(
                static_cast<int>(Spread[I] < 0 ? I : Shape.second + I));
          Result = B.CreateShuffleVector(Result, Wide, Blend);
        }
        Start += Live;
      }
    }
    remark(*Call, Target.getName(), Used);
    ++Done[{Target.getName().str(), Used.str()}].Intrinsics;
    ++NumIntrinsics;
    Result->takeName(Call);
    Call->replaceAllUsesWith(Result);
    Call->eraseFromParent();
    R.Changed = true;
  }
}

static void report(const ReplaceRun &R, const Tallies &Done) {
  static constexpr StringLiteral Names[] = {"whole", "early", "middle", "late"};
  for (const auto &[Key, T] : Done)
    udf::reportLine(R.Ctx,
                    json::Object{{"pass", DEBUG_TYPE},
                                 {"module", R.M.getName()},
                                 {"stage", Names[static_cast<int>(R.Stage)]},
                                 {"target", Key.first},
                                 {"replacement", Key.second},
                                 {"bodies", T.Bodies},
                                 {"calls", T.Calls},
                                 {"addresses", T.Addresses},
                                 {"intrinsics", T.Intrinsics}});
}

void udf::rewriteUses(ReplaceRun &R, const ReplaceWork &W) {
  Tallies Done;
  for (const Binding &B : W.Bindings) {
    Function &Form = *R.M.getFunction(B.Replacement);
    Tally &T = Done[{B.Target->getName().str(), B.Replacement}];
    if (B.NewBody)
      replaceBody(R, T, *B.Target, Form);
    else
      redirect(R, T, *B.Target, Form);
  }
  for (const IntrinsicBinding &B : W.IntrinsicBindings)
    rewriteIntrinsicCalls(R, Done, B);
  report(R, Done);
}
