//===- InstrumentCold.cpp - The rare calls of a watched function ----------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Calls that are sampled, timed or the first of their caller, and calls with
// new arguments. They end in the code of
// pytest_udftorch/swap/native/c/observe.c.
//
//===----------------------------------------------------------------------===//

#include "InstrumentCold.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/InlineAsm.h"
#include <tuple>

using namespace llvm;
using udf::CellOffset;
using udf::DueSample;
using udf::DueTime;
using udf::HotOffset;
using udf::InstrumentWork;

// These calls are timed together. One alone would show its latency, but a loop
// over a tensor sees the throughput.
static constexpr unsigned TimedCalls = 8;

/// Measures some calls of the body if the call is due for timing.
static void emitTiming(const InstrumentWork &I, IRBuilder<> &B, Function *Cold,
                       Value *Cell, Value *Due, ArrayRef<Value *> Args) {
  Type *I64 = B.getInt64Ty();
  BasicBlock *Time = BasicBlock::Create(I.Ctx, "time", Cold);
  BasicBlock *Loop = BasicBlock::Create(I.Ctx, "repeat", Cold);
  BasicBlock *Timed = BasicBlock::Create(I.Ctx, "timed", Cold);
  BasicBlock *Run = BasicBlock::Create(I.Ctx, "run", Cold);
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Due, DueTime)), Run, Time);

  B.SetInsertPoint(Time);
  Value *Start = B.CreateIntrinsic(Intrinsic::readcyclecounter, {}, {});
  B.CreateBr(Loop);
  B.SetInsertPoint(Loop);
  PHINode *Count = B.CreatePHI(I64, 2);
  SmallVector<Value *, 2> Fresh;
  // An argument that went through an empty instruction counts as new, so no
  // call of the loop can reuse the result of the one before.
  for (Value *Arg : Args)
    Fresh.push_back(B.CreateCall(
        InlineAsm::get(
            FunctionType::get(Arg->getType(), {Arg->getType()}, false), "",
            I.lanes() > 1 && Arg->getType()->getPrimitiveSizeInBits() == 512
                ? "=v,0"
                : "=x,0",
            /*hasSideEffects=*/true),
        {Arg}));
  Value *Y = I.callBody(B, Fresh, Attribute::NoInline);
  B.CreateCall(InlineAsm::get(
                   FunctionType::get(B.getVoidTy(), {Y->getType()}, false), "",
                   Y->getType()->getPrimitiveSizeInBits() == 512 ? "v" : "x",
                   /*hasSideEffects=*/true),
               {Y});
  Value *Next = B.CreateNUWAdd(Count, B.getInt64(1));
  Count->addIncoming(B.getInt64(0), Time);
  Count->addIncoming(Next, Loop);
  B.CreateCondBr(B.CreateICmpEQ(Next, B.getInt64(TimedCalls)), Timed, Loop);

  B.SetInsertPoint(Timed);
  Value *Ticks = B.CreateSub(
      B.CreateIntrinsic(Intrinsic::readcyclecounter, {}, {}), Start);
  FunctionCallee Store = I.M.getOrInsertFunction("udfprof_time", B.getVoidTy(),
                                                 Cell->getType(), I64, I64);
  B.CreateCall(Store, {Cell, Ticks, B.getInt64(TimedCalls * I.lanes())});
  B.CreateBr(Run);
  B.SetInsertPoint(Run);
}

/// Handles a call that is due for nothing, such as the one that ends a row of
/// softmax. The lanes that belong to elements are checked like any others.
static void emitRowEnd(const InstrumentWork &I, IRBuilder<> &B, Function *Cold,
                       Value *Cell, Value *Due, Value *X) {
  BasicBlock *Quick = BasicBlock::Create(I.Ctx, "quick", Cold);
  BasicBlock *Pass = BasicBlock::Create(I.Ctx, "pass", Cold);
  BasicBlock *Full = BasicBlock::Create(I.Ctx, "full", Cold);
  B.CreateCondBr(B.CreateIsNull(Due), Quick, Full);

  B.SetInsertPoint(Quick);
  Value *LiveAt = I.word(B, Cell, CellOffset::Live);
  Value *Live = B.CreateTrunc(
      B.CreateAlignedLoad(B.getInt32Ty(), LiveAt, Align(4), "live"),
      B.getIntNTy(I.lanes()));
  if (I.lanes() > 1)
    Live =
        B.CreateBitCast(Live, FixedVectorType::get(B.getInt1Ty(), I.lanes()));
  Value *Hot = B.CreateAlignedLoad(
      B.getPtrTy(), I.word(B, Cell, CellOffset::HotOf), Align(8), "hot");
  Value *Zero = nullptr, *Infinity = nullptr;
  Value *Passes =
      B.CreateOr(I.isOld(B, X, Hot, HotOffset::InLow), B.CreateNot(Live));
  if (I.W.IsExponential) {
    std::tie(Zero, Infinity) = I.zeroAndInfinity(B, X);
    Passes = B.CreateOr(Passes, B.CreateOr(Zero, Infinity));
  }
  B.CreateCondBr(I.allLanes(B, Passes), Pass, Full);

  B.SetInsertPoint(Pass);
  B.CreateAlignedStore(B.getInt32(~0u), LiveAt, Align(4));
  if (I.W.IsExponential)
    I.countPassed(B, Hot, B.CreateAnd(Zero, Live), B.CreateAnd(Infinity, Live));
  CallInst *Y = I.callBody(B, {X}, Attribute::NoInline);
  Y->setTailCall();
  B.CreateRet(Y);
  B.SetInsertPoint(Full);
}

Function *udf::emitCold(InstrumentWork &I) {
  Type *Pointer = PointerType::getUnqual(I.Ctx);
  SmallVector<Type *, 3> Params{Pointer};
  append_range(Params, I.F->getFunctionType()->params());
  Function *Cold = I.newCold(".turn", Params);
  IRBuilder<> B(BasicBlock::Create(I.Ctx, "entry", Cold));
  Type *I64 = B.getInt64Ty();
  SmallVector<Value *, 2> Args;
  for (Argument &A : drop_begin(Cold->args()))
    Args.push_back(&A);
  FunctionCallee Turn = I.M.getOrInsertFunction(
      "udfprof_turn", Pointer, B.getInt32Ty(), Pointer, I64, I64);
  uint64_t Low = I.W.IsOrdinary ? I.encoding(I.W.Low) : 0;
  uint64_t High = I.W.IsOrdinary ? I.encoding(I.W.High) : 0;
  Value *Cell = B.CreateCall(Turn,
                             {B.getInt32(I.W.Slot), Cold->getArg(0),
                              B.getInt64(Low), B.getInt64(High)},
                             "cell");
  Value *Due = B.CreateAlignedLoad(
      B.getInt32Ty(), I.word(B, Cell, CellOffset::Due), Align(8), "due");
  if (I.W.IsOrdinary)
    emitRowEnd(I, B, Cold, Cell, Due, Args[0]);
  emitTiming(I, B, Cold, Cell, Due, Args);

  Value *Y = I.callBody(B, Args, Attribute::NoInline);
  BasicBlock *Sample = BasicBlock::Create(I.Ctx, "sample", Cold);
  BasicBlock *Observe = BasicBlock::Create(I.Ctx, "observe", Cold);
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Due, DueSample)), Observe, Sample);
  SmallVector<Value *, 4> All{Cell};
  append_range(All, Args);
  All.push_back(Y);
  B.SetInsertPoint(Sample);
  I.returnObserver(B, "sample" + utostr(I.W.Arity), All);
  B.SetInsertPoint(Observe);
  I.returnObserver(B, "observe" + utostr(I.W.Arity), All);
  return Cold;
}

Function *udf::emitLook(InstrumentWork &I) {
  Function *Look = I.newCold(".look", I.F->getFunctionType()->params());
  IRBuilder<> B(BasicBlock::Create(I.Ctx, "entry", Look));
  SmallVector<Value *, 4> All;
  for (Argument &A : Look->args())
    All.push_back(&A);
  Value *Y = I.callBody(B, All, Attribute::NoInline);
  All.insert(All.begin(),
             B.CreateAlignedLoad(B.getPtrTy(),
                                 I.word(B, I.hot(B), HotOffset::Cell), Align(8),
                                 "cell"));
  All.push_back(Y);
  I.returnObserver(B, "observe" + utostr(I.W.Arity), All);
  return Look;
}
