//===- WidenForms.cpp - The forms of a scalar UDF -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Each form runs the first path on all its lanes and joins the flags. Only if
// one is set does it call a cold function, which runs the accurate path on the
// flagged lanes.
//
//===----------------------------------------------------------------------===//

#include "WidenForms.h"
#include "Target.h"
#include "WidenLanes.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MathExtras.h"

using namespace llvm;
using udf::LaneBlock;
using udf::plainLoopMetadata;
using udf::WidenWork;

static cl::opt<unsigned> BlockOption(
    "udf-widen-block", cl::Hidden, cl::init(0),
    cl::desc("Elements per block of the array form (0: by the target)"));

/// The body of \p F: runs \p First, which has a flag, and returns what it
/// returns, or what \p Rest does if the flag is set.
static void emitScalarSteps(const WidenWork &W, Function *F, Function *First,
                            Function *Rest) {
  IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
  SmallVector<Value *, 3> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);
  Value *Flag = B.CreateAlloca(B.getInt32Ty(), nullptr, "flag");
  B.CreateStore(B.getInt32(0), Flag);
  Args.push_back(Flag);
  CallInst *Y = B.CreateCall(First, Args, "y");
  Y->setCallingConv(First->getCallingConv());
  Value *Hard = B.CreateIsNotNull(B.CreateLoad(B.getInt32Ty(), Flag), "hard");
  BasicBlock *Slow = BasicBlock::Create(W.Ctx, "hard", F);
  BasicBlock *Done = BasicBlock::Create(W.Ctx, "done", F);
  B.CreateCondBr(Hard, Slow, Done, W.unlikely());
  B.SetInsertPoint(Slow);
  Args.pop_back();
  CallInst *Z = B.CreateCall(Rest, Args, "z");
  Z->setCallingConv(Rest->getCallingConv());
  Z->setTailCall();
  B.CreateRet(Z);
  B.SetInsertPoint(Done);
  B.CreateRet(Y);
}

/// Of x86-64 and of most AArch64 processors.
static constexpr Align CacheLine = Align::Constant<64>();

static void emitScalar(WidenWork &W, Function *F) {
  if (W.Scalar) {
    IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
    SmallVector<Value *, 2> Args;
    for (Argument &A : F->args())
      Args.push_back(&A);
    CallInst *Y = B.CreateCall(W.Scalar, Args);
    Y->setCallingConv(W.Scalar->getCallingConv());
    B.CreateRet(Y);
    return;
  }
  if (!W.Short) {
    emitScalarSteps(W, F, W.Fast, W.Accurate);
    return;
  }
  Function *Fixup =
      W.declareCold(F->getName() + ".fixup", F->getFunctionType());
  if (!Fixup)
    return;
  emitScalarSteps(W, Fixup, W.Fast, W.Accurate);
  emitScalarSteps(W, F, W.Short, Fixup);
  // Some ten cycles a call: another line to fetch costs one of them.
  F->setAlignment(CacheLine);
}

static Function *emitVectorFixup(WidenWork &W, const Twine &Symbol,
                                 unsigned Lanes) {
  Type *VecTy = W.vectorType(Lanes);
  Function *F = W.declareCold(
      Symbol, FunctionType::get(VecTy, SmallVector<Type *, 2>(W.U.Arity, VecTy),
                                false));
  if (!F)
    return nullptr;
  IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
  SmallVector<Value *, 2> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);
  B.CreateRet(emitAccurateLanes(W, B, Args, Lanes, nullptr));
  return F;
}

/// \p F takes and returns vectors of \p Lanes, or scalable ones that have as
/// many under the function's vscale_range.
static void emitVector(WidenWork &W, Function *F, unsigned Lanes) {
  IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
  Type *Given = F->getReturnType(), *Fixed = W.vectorType(Lanes);
  auto Return = [&](Value *Y) {
    B.CreateRet(Given == Fixed
                    ? Y
                    : B.CreateInsertVector(Given, PoisonValue::get(Given), Y,
                                           B.getInt64(0)));
  };
  SmallVector<Value *, 2> Args;
  for (Argument &A : F->args())
    Args.push_back(Given == Fixed
                       ? static_cast<Value *>(&A)
                       : B.CreateExtractVector(Fixed, &A, B.getInt64(0)));
  LaneBlock First =
      emitLanes(W, B, W.firstStep(), Args, Lanes, /*KeepFlags=*/false);
  if (!First.Hard) {
    Return(First.Result);
    return;
  }
  // The fix-up takes its vectors by value: a pointer would make the buffers
  // escape and keep them in memory on the hot path.
  Function *Fixup = emitVectorFixup(W, F->getName() + ".fixup", Lanes);
  BasicBlock *Slow = BasicBlock::Create(W.Ctx, "hard", F);
  BasicBlock *Done = BasicBlock::Create(W.Ctx, "done", F);
  B.CreateCondBr(First.Hard, Slow, Done, W.unlikely());
  B.SetInsertPoint(Slow);
  CallInst *Z = B.CreateCall(Fixup, Args);
  Z->setTailCall();
  Return(Z);
  B.SetInsertPoint(Done);
  Return(First.Result);
}

/// Dead lanes repeat the first element, which is live: a filler of the pass's
/// own choosing could be a hard case and send every tail to the fix-up.
static Value *maskedLoad(const WidenWork &W, IRBuilder<> &B, Value *From,
                         Value *Mask, unsigned Lanes) {
  Value *First = B.CreateAlignedLoad(W.ElemTy, From, W.elementAlign());
  return B.CreateMaskedLoad(W.vectorType(Lanes), From, W.elementAlign(), Mask,
                            B.CreateVectorSplat(Lanes, First));
}

static Value *laneMask(IRBuilder<> &B, Value *Count, unsigned Lanes) {
  SmallVector<Constant *, 64> Iota;
  for (unsigned I = 0; I < Lanes; ++I)
    Iota.push_back(B.getInt32(I));
  Value *Limit =
      B.CreateVectorSplat(Lanes, B.CreateTrunc(Count, B.getInt32Ty()));
  return B.CreateICmpULT(ConstantVector::get(Iota), Limit, "live");
}

/// void(ptr a, [ptr b,] ptr out, i64 count): recomputes the first `count`
/// elements of a block. It works on memory, so the hot loop need not keep the
/// block's input in registers. It reads everything before it writes, since
/// `out` may be `a` or `b`.
static Function *emitArrayFixup(WidenWork &W, const Twine &Symbol,
                                unsigned Lanes) {
  SmallVector<Type *, 4> Params(W.U.Arity + 1, PointerType::getUnqual(W.Ctx));
  Params.push_back(Type::getInt64Ty(W.Ctx));
  Function *F = W.declareCold(
      Symbol, FunctionType::get(Type::getVoidTy(W.Ctx), Params, false));
  if (!F)
    return nullptr;
  IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
  Value *Mask = laneMask(B, F->getArg(W.U.Arity + 1), Lanes);
  SmallVector<Value *, 2> Args;
  for (unsigned I = 0; I < W.U.Arity; ++I)
    Args.push_back(maskedLoad(W, B, F->getArg(I), Mask, Lanes));
  Value *Result = emitAccurateLanes(W, B, Args, Lanes,
                                    B.CreateBitCast(Mask, B.getIntNTy(Lanes)));
  B.CreateMaskedStore(Result, F->getArg(W.U.Arity), W.elementAlign(), Mask);
  B.CreateRetVoid();
  return F;
}

/// One block of an array form: load, run, repair, store. Returns with \p B
/// behind the store. \p Mask is null where all \p Lanes are live.
static void emitArrayBlock(const WidenWork &W, IRBuilder<> &B, Function *Fixup,
                           unsigned Lanes, Value *Base, Value *Mask,
                           Value *Count) {
  Function *F = B.GetInsertBlock()->getParent();
  SmallVector<Value *, 4> Pointers;
  SmallVector<Value *, 2> Args;
  for (unsigned I = 0; I < W.U.Arity; ++I) {
    Value *P = B.CreateInBoundsGEP(W.ElemTy, F->getArg(1 + I), Base);
    Pointers.push_back(P);
    Args.push_back(Mask ? maskedLoad(W, B, P, Mask, Lanes)
                        : B.CreateAlignedLoad(W.vectorType(Lanes), P,
                                              W.elementAlign(), "block"));
  }
  Value *To = B.CreateInBoundsGEP(W.ElemTy, F->getArg(W.U.Arity + 1), Base);
  Pointers.push_back(To);
  LaneBlock First =
      emitLanes(W, B, W.firstStep(), Args, Lanes, /*KeepFlags=*/false);
  BasicBlock *Join = nullptr;
  if (First.Hard) {
    BasicBlock *Slow = BasicBlock::Create(W.Ctx, "hard", F);
    BasicBlock *Easy = BasicBlock::Create(W.Ctx, "easy", F);
    Join = BasicBlock::Create(W.Ctx, "stored", F);
    B.CreateCondBr(First.Hard, Slow, Easy, W.unlikely());
    B.SetInsertPoint(Slow);
    Pointers.push_back(Count);
    B.CreateCall(Fixup, Pointers);
    B.CreateBr(Join);
    B.SetInsertPoint(Easy);
  }
  if (Mask)
    B.CreateMaskedStore(First.Result, To, W.elementAlign(), Mask);
  else
    B.CreateAlignedStore(First.Result, To, W.elementAlign());
  if (Join) {
    B.CreateBr(Join);
    B.SetInsertPoint(Join);
  }
}

static void emitArray(WidenWork &W, Function *F) {
  unsigned PerRegister = W.RegisterBits / W.elementBits();
  unsigned Lanes = 2 * PerRegister;
  if (BlockOption)
    Lanes = std::min<unsigned>(PowerOf2Ceil(BlockOption), 64);

  IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
  Value *N = F->getArg(0);
  Function *Fixup =
      W.Fast ? emitArrayFixup(W, F->getName() + ".fixup", Lanes) : nullptr;

  BasicBlock *Entry = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(W.Ctx, "blocks", F);
  BasicBlock *Rest = BasicBlock::Create(W.Ctx, "rest", F);
  BasicBlock *Tail = BasicBlock::Create(W.Ctx, "tail", F);
  BasicBlock *Exit = BasicBlock::Create(W.Ctx, "exit", F);
  Value *Full =
      B.CreateAnd(N, B.getInt64(-static_cast<int64_t>(Lanes)), "full");
  B.CreateCondBr(B.CreateICmpSGE(N, B.getInt64(Lanes)), Loop, Rest);

  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(B.getInt64Ty(), 2, "i");
  emitArrayBlock(W, B, Fixup, Lanes, I, nullptr, B.getInt64(Lanes));
  Value *Next = B.CreateNSWAdd(I, B.getInt64(Lanes));
  I->addIncoming(B.getInt64(0), Entry);
  I->addIncoming(Next, B.GetInsertBlock());
  BasicBlock *LatchBlock = B.GetInsertBlock();
  B.CreateCondBr(B.CreateICmpSLT(Next, Full), Loop, Rest)
      ->setMetadata(LLVMContext::MD_loop, plainLoopMetadata(W.Ctx));

  B.SetInsertPoint(Rest);
  PHINode *Base = B.CreatePHI(B.getInt64Ty(), 2, "base");
  Base->addIncoming(B.getInt64(0), Entry);
  Base->addIncoming(Full, LatchBlock);
  Value *Left = B.CreateSub(N, Base, "left");
  B.CreateCondBr(B.CreateICmpSGT(Left, B.getInt64(0)), Tail, Exit);

  B.SetInsertPoint(Tail);
  emitArrayBlock(W, B, Fixup, Lanes, Base, laneMask(B, Left, Lanes), Left);
  B.CreateBr(Exit);
  B.SetInsertPoint(Exit);
  B.CreateRetVoid();
}

void udf::emitForm(WidenWork &W, Function *F, const Form &Want) {
  if (Want.Kind == "scalar") {
    emitScalar(W, F);
    return;
  }
  requireVectorWidth(*F, W.RegisterBits);
  if (Want.Kind == "array")
    emitArray(W, F);
  else if (Want.Kind == "vx")
    emitVector(W, F, W.RegisterBits / W.elementBits());
  else
    emitVector(W, F, Want.Lanes);
}
