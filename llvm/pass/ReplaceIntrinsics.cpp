//===- ReplaceIntrinsics.cpp - Calls of intrinsics become calls of forms --===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A call whose type the map does not name is cut into pieces that it does name.
//
//===----------------------------------------------------------------------===//

#include "ReplaceRewrite.h"

#include "llvm/ADT/Statistic.h"
#include "llvm/IR/IRBuilder.h"

#define DEBUG_TYPE "udf-replace"

using namespace llvm;
using udf::IntrinsicBinding;
using udf::isUdfCode;
using udf::ReplaceRun;
using udf::shape;
using udf::Tallies;

STATISTIC(NumIntrinsics, "Number of intrinsic calls replaced");

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

/// One piece of a call: calls a form of \p Lanes lanes on the \p Live lanes
/// from
/// \p Start on, and adds what it returns to \p Result. Spare lanes repeat the
/// piece's first lane.
static Value *callPiece(const ReplaceRun &R, IRBuilder<> &B, Function &Form,
                        unsigned Lanes, const CallInst &Call, Value *Result,
                        unsigned Start, unsigned Live) {
  auto *VecTy = dyn_cast<FixedVectorType>(Call.getType());
  SmallVector<Value *, 3> Parts;
  for (Value *Arg : Call.args()) {
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
  Value *Y = callForm(R, B, Form, Parts, Call);
  if (!VecTy)
    return Lanes == 1 ? Y : B.CreateExtractElement(Y, uint64_t(0));
  if (Lanes == 1)
    return B.CreateInsertElement(Result, Y, Start);
  unsigned Whole = VecTy->getNumElements();
  SmallVector<int, 64> Spread(Whole, -1), Blend;
  for (unsigned I = 0; I < Live; ++I)
    Spread[Start + I] = static_cast<int>(I);
  Value *Wide = B.CreateShuffleVector(Y, Spread);
  for (unsigned I = 0; I < Whole; ++I)
    Blend.push_back(static_cast<int>(Spread[I] < 0 ? I : Whole + I));
  return B.CreateShuffleVector(Result, Wide, Blend);
}

/// Cuts a call into pieces: the narrowest form that takes all that is left, or
/// else the widest there is. \p Used receives the name of the last one.
static Value *callPieces(const ReplaceRun &R, IRBuilder<> &B,
                         const std::map<unsigned, Function *> &Forms,
                         const CallInst &Call, unsigned Whole,
                         StringRef &Used) {
  Value *Result = PoisonValue::get(Call.getType());
  for (unsigned Start = 0; Start < Whole;) {
    unsigned Left = Whole - Start;
    auto Piece = Forms.lower_bound(Left);
    if (Piece == Forms.end())
      --Piece;
    auto [Lanes, Form] = *Piece;
    unsigned Live = std::min(Lanes, Left);
    Result = callPiece(R, B, *Form, Lanes, Call, Result, Start, Live);
    Used = Form->getName();
    Start += Live;
  }
  return Result;
}

void udf::rewriteIntrinsicCalls(ReplaceRun &R, Tallies &Done,
                                const IntrinsicBinding &Binding) {
  Function &Target = *Binding.Target;
  unsigned Whole = shape(Target.getReturnType())->second;
  std::map<unsigned, Function *> Forms;
  for (const auto &[Lanes, Name] : Binding.Forms)
    Forms[Lanes] = R.M.getFunction(Name);

  SmallVector<CallInst *, 16> Calls;
  for (User *U : Target.users())
    if (auto *Call = dyn_cast<CallInst>(U); Call && !isUdfCode(*Call))
      Calls.push_back(Call);
  for (CallInst *Call : Calls) {
    IRBuilder<> B(Call);
    Value *Result = nullptr;
    StringRef Used;
    if (auto Exact = Forms.find(Whole); Exact != Forms.end()) {
      SmallVector<Value *, 3> Args(Call->args());
      Result = callForm(R, B, *Exact->second, Args, *Call);
      Used = Exact->second->getName();
    } else {
      Result = callPieces(R, B, Forms, *Call, Whole, Used);
    }
    remarkReplaced(*Call, Target.getName(), Used);
    ++Done[{Target.getName().str(), Used.str()}].Intrinsics;
    ++NumIntrinsics;
    Result->takeName(Call);
    Call->replaceAllUsesWith(Result);
    Call->eraseFromParent();
    R.Changed.insert(B.GetInsertBlock()->getParent());
  }
}
