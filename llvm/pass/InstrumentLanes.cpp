//===- InstrumentLanes.cpp - Forms of lanes that watch themselves ---------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Counts down to the next call that is sampled, and compares arguments with
// bounds before the body and results after it.
//
//===----------------------------------------------------------------------===//

#include "InstrumentLanes.h"
#include "InstrumentCold.h"

#include "llvm/ADT/STLExtras.h"

using namespace llvm;
using udf::HotOffset;
using udf::InstrumentWork;

/// Goes to \p Old if no argument is new, and to \p Look otherwise.
static void branchOnNew(const InstrumentWork &I, IRBuilder<> &B,
                        ArrayRef<Value *> Args, Value *Hot, BasicBlock *Old,
                        BasicBlock *Look) {
  Value *IsOld = I.isOld(B, Args[0], Hot, HotOffset::InLow);
  for (Value *Arg : drop_begin(Args))
    IsOld = B.CreateAnd(IsOld, I.isOld(B, Arg, Hot, HotOffset::InLow));
  if (!I.W.IsExponential) {
    B.CreateCondBr(I.allLanes(B, IsOld), Old, Look, I.likely());
    return;
  }
  // Finding zeros takes longer than the test before it. Where none has come
  // up yet, none is expected. Where one has, all are looked for at once:
  // softmax makes one in each row, and no branch can predict which call holds
  // it.
  BasicBlock *Plain = BasicBlock::Create(I.Ctx, "plain", I.F);
  BasicBlock *Maybe = BasicBlock::Create(I.Ctx, "maybe", I.F);
  BasicBlock *Passed = BasicBlock::Create(I.Ctx, "passed", I.F);
  Value *Zeros = B.CreateAlignedLoad(
      B.getInt64Ty(), I.word(B, Hot, HotOffset::Zeros), Align(8));
  B.CreateCondBr(B.CreateIsNull(Zeros), Plain, Maybe);
  B.SetInsertPoint(Plain);
  B.CreateCondBr(I.allLanes(B, IsOld), Old, Maybe, I.likely());
  B.SetInsertPoint(Maybe);
  auto [Zero, Infinity] = I.zeroAndInfinity(B, Args[0]);
  B.CreateCondBr(I.allLanes(B, B.CreateOr(IsOld, B.CreateOr(Zero, Infinity))),
                 Passed, Look, I.likely());
  B.SetInsertPoint(Passed);
  I.countPassed(B, Hot, Zero, Infinity);
  B.CreateBr(Old);
}

void udf::emitLanes(InstrumentWork &I) {
  Function *Cold = emitCold(I);
  Function *LookAt = emitLook(I);
  BasicBlock *Entry = BasicBlock::Create(I.Ctx, "entry", I.F);
  BasicBlock *Known = BasicBlock::Create(I.Ctx, "known", I.F);
  BasicBlock *Old = BasicBlock::Create(I.Ctx, "old", I.F);
  BasicBlock *Turn = BasicBlock::Create(I.Ctx, "turn", I.F);
  BasicBlock *Look = BasicBlock::Create(I.Ctx, "look", I.F);
  IRBuilder<> B(Entry);
  Type *I64 = B.getInt64Ty();
  SmallVector<Value *, 2> Args;
  for (Argument &A : I.F->args())
    Args.push_back(&A);

  Value *Hot = I.hot(B);
  Value *LeftAt = I.word(B, Hot, HotOffset::Left);
  Value *Left = B.CreateSub(B.CreateAlignedLoad(I64, LeftAt, Align(8), "left"),
                            B.getInt64(1));
  B.CreateAlignedStore(Left, LeftAt, Align(8));
  B.CreateCondBr(B.CreateICmpSLT(Left, B.getInt64(0)), Turn, Known,
                 I.unlikely());

  B.SetInsertPoint(Turn);
  SmallVector<Value *, 3> TurnArgs{I.callerOf(B)};
  append_range(TurnArgs, Args);
  CallInst *Z = B.CreateCall(Cold, TurnArgs);
  Z->setTailCall();
  B.CreateRet(Z);

  B.SetInsertPoint(Known);
  branchOnNew(I, B, Args, Hot, Old, Look);

  B.SetInsertPoint(Look);
  Z = B.CreateCall(LookAt, Args);
  Z->setTailCall();
  B.CreateRet(Z);

  B.SetInsertPoint(Old);
  CallInst *Y = I.callBody(B, Args, Attribute::AlwaysInline);
  Y->setTailCall();
  if (I.W.IsOrdinary) {
    B.CreateRet(Y);
    return;
  }
  // Found again rather than kept over the body, which may be a call.
  Hot = I.hot(B);
  BasicBlock *Done = BasicBlock::Create(I.Ctx, "done", I.F);
  BasicBlock *Result = BasicBlock::Create(I.Ctx, "result", I.F);
  B.CreateCondBr(I.allLanes(B, I.isOld(B, Y, Hot, HotOffset::OutLow)), Done,
                 Result, I.likely());
  B.SetInsertPoint(Result);
  Value *Cell = B.CreateAlignedLoad(
      B.getPtrTy(), I.word(B, Hot, HotOffset::Cell), Align(8), "cell");
  I.returnObserver(B, "result", {Cell, Y});
  B.SetInsertPoint(Done);
  B.CreateRet(Y);
}
