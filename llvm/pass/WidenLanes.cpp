//===- WidenLanes.cpp - Loops over the lanes of a block -------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Writes a loop over the lanes of one block with a constant trip count, and
// metadata that tells LLVM's loop vectoriser how to treat it. The block's
// buffers are allocas that never escape, so SROA turns them into registers once
// the loop is straight-line code.
//
//===----------------------------------------------------------------------===//

#include "WidenLanes.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MathExtras.h"

using namespace llvm;
using udf::LaneBlock;
using udf::WidenWork;

static cl::opt<unsigned>
    WidthOption("udf-widen-width", cl::Hidden, cl::init(0),
                cl::desc("Lanes that the loop vectoriser is asked to take "
                         "together (0: by the target)"));

AllocaInst *udf::entryAlloca(Function *F, Type *Ty, const Twine &Name,
                             Align Alignment) {
  BasicBlock &Entry = F->getEntryBlock();
  IRBuilder<> B(&Entry, Entry.begin());
  AllocaInst *A = B.CreateAlloca(Ty, nullptr, Name);
  A->setAlignment(Alignment);
  return A;
}

static MDNode *loopHint(LLVMContext &Ctx, StringRef Name,
                        std::optional<unsigned> Number = std::nullopt,
                        bool IsBool = false) {
  SmallVector<Metadata *, 2> Ops{MDString::get(Ctx, Name)};
  if (Number)
    Ops.push_back(ConstantAsMetadata::get(ConstantInt::get(
        IsBool ? Type::getInt1Ty(Ctx) : Type::getInt32Ty(Ctx), *Number)));
  return MDNode::get(Ctx, Ops);
}

static MDNode *loopId(LLVMContext &Ctx, ArrayRef<Metadata *> Hints) {
  SmallVector<Metadata *, 6> Ops{nullptr};
  Ops.append(Hints.begin(), Hints.end());
  MDNode *Id = MDNode::getDistinct(Ctx, Ops);
  Id->replaceOperandWith(0, Id);
  return Id;
}

/// How many lanes the vectoriser takes in one register.
static unsigned lanesPerRegister(const WidenWork &W, unsigned Lanes) {
  unsigned Width = W.RegisterBits / W.elementBits();
  if (WidthOption)
    Width = PowerOf2Ceil(WidthOption);
  return std::min(Width, Lanes);
}

/// The vectoriser takes the whole block at once: width times interleave count
/// is the trip count, so the vector loop runs exactly once and disappears. The
/// early unroller must leave the loop alone, or nothing would be left to
/// vectorise.
static MDNode *loopMetadata(const WidenWork &W, unsigned Lanes) {
  unsigned Width = lanesPerRegister(W, Lanes);
  SmallVector<Metadata *, 5> Hints{
      loopHint(W.Ctx, "llvm.loop.mustprogress"),
      loopHint(W.Ctx, "llvm.loop.unroll.disable"),
      loopHint(W.Ctx, "llvm.loop.vectorize.width", Width),
      loopHint(W.Ctx, "llvm.loop.interleave.count", Lanes / Width)};
  // Asks for a warning when a fast path cannot be vectorised. A UDF that is one
  // scalar function may hold branches and calls, so a warning there would say
  // nothing new.
  if (W.Fast)
    Hints.push_back(loopHint(W.Ctx, "llvm.loop.vectorize.enable", 1, true));
  return loopId(W.Ctx, Hints);
}

MDNode *udf::plainLoopMetadata(LLVMContext &Ctx) {
  return loopId(Ctx, {loopHint(Ctx, "llvm.loop.mustprogress"),
                      loopHint(Ctx, "llvm.loop.unroll.disable"),
                      loopHint(Ctx, "llvm.loop.vectorize.enable", 0, true)});
}

LaneBlock udf::emitLanes(const WidenWork &W, IRBuilder<> &B, Function *Step,
                         ArrayRef<Value *> Args, unsigned Lanes,
                         bool KeepFlags) {
  Function *F = B.GetInsertBlock()->getParent();
  Type *I64 = B.getInt64Ty();
  Type *BufferTy = ArrayType::get(W.ElemTy, Lanes);
  SmallVector<Value *, 2> In;
  for (Value *Arg : Args) {
    In.push_back(entryAlloca(F, BufferTy, "in", W.vectorAlign(Lanes)));
    B.CreateAlignedStore(Arg, In.back(), W.vectorAlign(Lanes));
  }
  Value *Out = entryAlloca(F, BufferTy, "out", W.vectorAlign(Lanes));
  Value *Flag = nullptr, *Flags = nullptr;
  if (W.Fast) {
    Flag = entryAlloca(F, B.getInt32Ty(), "flag", Align(4));
    if (KeepFlags)
      Flags = entryAlloca(F, ArrayType::get(B.getInt8Ty(), Lanes), "flags",
                          Align(Lanes));
  }

  BasicBlock *Before = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(W.Ctx, "lanes", F);
  BasicBlock *After = BasicBlock::Create(W.Ctx, "lanes.done", F);
  B.CreateBr(Loop);

  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(I64, 2, "lane");
  PHINode *Any = W.Fast ? B.CreatePHI(B.getInt1Ty(), 2, "any") : nullptr;
  SmallVector<Value *, 3> CallArgs;
  for (Value *Buffer : In)
    CallArgs.push_back(
        B.CreateAlignedLoad(W.ElemTy, B.CreateInBoundsGEP(W.ElemTy, Buffer, I),
                            W.elementAlign(), "x"));
  if (W.Fast) {
    // A fast path that forgets to write its flag must not leave an old one.
    B.CreateStore(B.getInt32(0), Flag);
    CallArgs.push_back(Flag);
  }
  CallInst *Y = B.CreateCall(Step, CallArgs, "y");
  Y->setCallingConv(Step->getCallingConv());
  B.CreateAlignedStore(Y, B.CreateInBoundsGEP(W.ElemTy, Out, I),
                       W.elementAlign());
  Value *AnyNext = nullptr;
  if (W.Fast) {
    Value *Hard = B.CreateIsNotNull(B.CreateLoad(B.getInt32Ty(), Flag), "hard");
    AnyNext = B.CreateOr(Any, Hard);
    if (Flags)
      B.CreateStore(B.CreateZExt(Hard, B.getInt8Ty()),
                    B.CreateInBoundsGEP(B.getInt8Ty(), Flags, I));
  }
  Value *Next = B.CreateNUWAdd(I, B.getInt64(1));
  I->addIncoming(B.getInt64(0), Before);
  I->addIncoming(Next, Loop);
  if (W.Fast) {
    Any->addIncoming(B.getFalse(), Before);
    Any->addIncoming(AnyNext, Loop);
  }
  BranchInst *Latch =
      B.CreateCondBr(B.CreateICmpEQ(Next, B.getInt64(Lanes)), After, Loop);
  Latch->setMetadata(LLVMContext::MD_loop, loopMetadata(W, Lanes));

  B.SetInsertPoint(After);
  Value *Result = B.CreateAlignedLoad(W.vectorType(Lanes), Out,
                                      W.vectorAlign(Lanes), "result");
  return {Result, AnyNext, Flags};
}

/// Taken register by register, the flags are found to be the comparisons that
/// they come from; across registers they would be packed as bytes.
SmallVector<Value *, 4> udf::hardParts(const WidenWork &W, IRBuilder<> &B,
                                       const LaneBlock &Block, unsigned Lanes) {
  unsigned Width = lanesPerRegister(W, Lanes);
  SmallVector<Value *, 4> Parts;
  for (unsigned I = 0; I < Lanes; I += Width) {
    Value *Flags = B.CreateAlignedLoad(
        FixedVectorType::get(B.getInt8Ty(), Width),
        B.CreateConstInBoundsGEP1_64(B.getInt8Ty(), Block.Flags, I),
        Align(Width));
    Parts.push_back(B.CreateIsNotNull(Flags, "todo"));
  }
  return Parts;
}

/// The lanes of one register as an integer.
static Value *asInteger(IRBuilder<> &B, Value *Part) {
  unsigned Width = cast<FixedVectorType>(Part->getType())->getNumElements();
  return B.CreateBitCast(Part, B.getIntNTy(Width));
}

Value *udf::joinParts(IRBuilder<> &B, ArrayRef<Value *> Parts, unsigned Lanes) {
  unsigned Width = Lanes / Parts.size();
  Value *Mask = nullptr;
  for (unsigned I = 0; I < Parts.size(); ++I) {
    Value *Part =
        B.CreateZExtOrTrunc(asInteger(B, Parts[I]), B.getIntNTy(Lanes));
    Mask = Mask ? B.CreateOr(Mask, B.CreateShl(Part, I * Width)) : Part;
  }
  return Mask;
}

Value *udf::anyOfParts(IRBuilder<> &B, ArrayRef<Value *> Parts) {
  Value *Any = Parts.front();
  for (Value *Part : Parts.drop_front())
    Any = B.CreateOr(Any, Part);
  return B.CreateIsNotNull(asInteger(B, Any));
}

Value *udf::hardLanes(const WidenWork &W, IRBuilder<> &B,
                      const LaneBlock &Block, unsigned Lanes) {
  return joinParts(B, hardParts(W, B, Block, Lanes), Lanes);
}

void udf::emitEachLane(const WidenWork &W, IRBuilder<> &B, Value *Mask,
                       function_ref<void(Value *Lane)> Body) {
  Function *F = B.GetInsertBlock()->getParent();
  BasicBlock *Before = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(W.Ctx, "hard.lanes", F);
  BasicBlock *After = BasicBlock::Create(W.Ctx, "hard.done", F);
  B.CreateCondBr(B.CreateIsNotNull(Mask), Loop, After);
  B.SetInsertPoint(Loop);
  PHINode *Left = B.CreatePHI(Mask->getType(), 2, "left");
  Body(B.CreateZExtOrTrunc(
      B.CreateBinaryIntrinsic(Intrinsic::cttz, Left, B.getTrue()),
      B.getInt64Ty(), "lane"));
  Value *Rest = B.CreateAnd(
      Left, B.CreateSub(Left, ConstantInt::get(Mask->getType(), 1)), "rest");
  Left->addIncoming(Mask, Before);
  Left->addIncoming(Rest, Loop);
  B.CreateCondBr(B.CreateIsNull(Rest), After, Loop)
      ->setMetadata(LLVMContext::MD_loop, plainLoopMetadata(W.Ctx));
  B.SetInsertPoint(After);
}

Value *udf::emitAccurateLanes(const WidenWork &W, IRBuilder<> &B,
                              ArrayRef<Value *> Args, unsigned Lanes,
                              Value *Live) {
  LaneBlock First = emitLanes(W, B, W.Fast, Args, Lanes, /*KeepFlags=*/true);
  Function *F = B.GetInsertBlock()->getParent();
  Value *Todo = hardLanes(W, B, First, Lanes);
  if (Live)
    Todo = B.CreateAnd(Todo, Live);

  Type *BufferTy = ArrayType::get(W.ElemTy, Lanes);
  SmallVector<Value *, 2> In;
  for (Value *Arg : Args) {
    In.push_back(entryAlloca(F, BufferTy, "x.lanes", W.vectorAlign(Lanes)));
    B.CreateAlignedStore(Arg, In.back(), W.vectorAlign(Lanes));
  }
  Value *Out = entryAlloca(F, BufferTy, "y.lanes", W.vectorAlign(Lanes));
  B.CreateAlignedStore(First.Result, Out, W.vectorAlign(Lanes));

  // With every hard lane dead there is nothing to do.
  emitEachLane(W, B, Todo, [&](Value *Lane) {
    SmallVector<Value *, 2> CallArgs;
    for (Value *Buffer : In)
      CallArgs.push_back(B.CreateAlignedLoad(
          W.ElemTy, B.CreateInBoundsGEP(W.ElemTy, Buffer, Lane),
          W.elementAlign(), "x"));
    CallInst *Y = B.CreateCall(W.Accurate, CallArgs, "y");
    Y->setCallingConv(W.Accurate->getCallingConv());
    B.CreateAlignedStore(Y, B.CreateInBoundsGEP(W.ElemTy, Out, Lane),
                         W.elementAlign());
  });
  return B.CreateAlignedLoad(W.vectorType(Lanes), Out, W.vectorAlign(Lanes));
}
