//===- WidenForms.cpp - The forms of a scalar UDF -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Each form runs the first path on all its lanes and joins the flags. Only if
// one is set does it call a cold function, which runs the accurate path on the
// flagged lanes. Behind a quick path an array form calls it for a list of lanes
// instead of a block.
//
//===----------------------------------------------------------------------===//

#include "WidenForms.h"
#include "Target.h"
#include "WidenLanes.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/TargetParser/Triple.h"
#include <optional>

using namespace llvm;
using udf::anyOfParts;
using udf::entryAlloca;
using udf::joinParts;
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

namespace {
/// A list of hard lanes that the loop of an array form puts aside, to be
/// repaired together. It holds their arguments, since `out` may be `a` or `b`.
struct Aside {
  SmallVector<Value *, 2> Arguments; // one buffer for each argument
  Value *Places;                     // i64 for each lane: where its result goes
  Value *Used;                       // i64: how many there are
  uint64_t Capacity;                 // of the buffers
  uint64_t MostOfBlock;              // the most lanes that one block puts aside
  Function *Repair;
};
} // namespace

/// A loop over i64 from 0 to \p End, which is not 0, in steps of \p Step.
static void emitLoop(const WidenWork &W, IRBuilder<> &B, const Twine &Name,
                     Value *End, uint64_t Step,
                     function_ref<void(Value *I)> Body) {
  Function *F = B.GetInsertBlock()->getParent();
  BasicBlock *Before = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(W.Ctx, Name, F);
  BasicBlock *After = BasicBlock::Create(W.Ctx, Name + ".done", F);
  B.CreateBr(Loop);
  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(B.getInt64Ty(), 2, "i");
  Body(I);
  Value *Next = B.CreateNUWAdd(I, B.getInt64(Step));
  I->addIncoming(B.getInt64(0), Before);
  I->addIncoming(Next, Loop);
  B.CreateCondBr(B.CreateICmpULT(Next, End), Loop, After)
      ->setMetadata(LLVMContext::MD_loop, plainLoopMetadata(W.Ctx));
  B.SetInsertPoint(After);
}

/// void(ptr a, [ptr b,] ptr places, ptr out, i64 count): repairs `count` lanes
/// that were put aside, and overwrites their arguments.
static Function *emitRepair(WidenWork &W, const Twine &Symbol, Function *Fixup,
                            unsigned Lanes) {
  Type *Ptr = PointerType::getUnqual(W.Ctx);
  SmallVector<Type *, 5> Params(W.U.Arity + 2, Ptr);
  Params.push_back(Type::getInt64Ty(W.Ctx));
  Function *F = W.declareCold(
      Symbol, FunctionType::get(Type::getVoidTy(W.Ctx), Params, false));
  if (!F)
    return nullptr;
  IRBuilder<> B(BasicBlock::Create(W.Ctx, "entry", F));
  Value *Results = F->getArg(0), *Places = F->getArg(W.U.Arity);
  Value *Out = F->getArg(W.U.Arity + 1), *Count = F->getArg(W.U.Arity + 2);
  emitLoop(W, B, "blocks", Count, Lanes, [&](Value *I) {
    SmallVector<Value *, 4> Args;
    for (unsigned J = 0; J < W.U.Arity; ++J)
      Args.push_back(B.CreateInBoundsGEP(W.ElemTy, F->getArg(J), I));
    Args.push_back(Args[0]);
    Args.push_back(B.CreateBinaryIntrinsic(
        Intrinsic::umin, B.CreateSub(Count, I), B.getInt64(Lanes)));
    B.CreateCall(Fixup, Args);
  });
  emitLoop(W, B, "scatter", Count, 1, [&](Value *I) {
    Value *Y =
        B.CreateAlignedLoad(W.ElemTy, B.CreateInBoundsGEP(W.ElemTy, Results, I),
                            W.elementAlign(), "y");
    Value *Place =
        B.CreateLoad(B.getInt64Ty(),
                     B.CreateInBoundsGEP(B.getInt64Ty(), Places, I), "place");
    B.CreateAlignedStore(Y, B.CreateInBoundsGEP(W.ElemTy, Out, Place),
                         W.elementAlign());
  });
  B.CreateRetVoid();
  return F;
}

/// Blocks that the list has room for. The block that finds it full is repaired
/// as a whole, so it should be rare; an array in the L1 cache hardly fills it.
static constexpr unsigned AsideBlocks = 4;

/// An empty list in the frame of the array form. A block of which more than an
/// eighth is hard costs less as a whole.
static Aside emitAside(WidenWork &W, IRBuilder<> &B, Function *Fixup,
                       unsigned Lanes) {
  Function *F = B.GetInsertBlock()->getParent();
  Aside A;
  A.Capacity = AsideBlocks * Lanes;
  A.MostOfBlock = std::max(1u, Lanes / 8);
  for (unsigned I = 0; I < W.U.Arity; ++I)
    A.Arguments.push_back(entryAlloca(F, ArrayType::get(W.ElemTy, A.Capacity),
                                      "aside", W.elementAlign()));
  A.Places = entryAlloca(F, ArrayType::get(B.getInt64Ty(), A.Capacity),
                         "aside.places", Align(8));
  A.Used = entryAlloca(F, B.getInt64Ty(), "aside.used", Align(8));
  B.CreateStore(B.getInt64(0), A.Used);
  A.Repair = emitRepair(W, F->getName() + ".repair", Fixup, Lanes);
  return A;
}

/// Repairs the lanes put aside if there are more than \p Most.
static void emitRepairCall(const WidenWork &W, IRBuilder<> &B, const Aside &A,
                           uint64_t Most) {
  Function *F = B.GetInsertBlock()->getParent();
  BasicBlock *Full = BasicBlock::Create(W.Ctx, "aside.repair", F);
  BasicBlock *Done = BasicBlock::Create(W.Ctx, "aside.done", F);
  Value *Used = B.CreateLoad(B.getInt64Ty(), A.Used, "used");
  B.CreateCondBr(B.CreateICmpUGT(Used, B.getInt64(Most)), Full, Done,
                 W.unlikely());
  B.SetInsertPoint(Full);
  SmallVector<Value *, 5> Args(A.Arguments.begin(), A.Arguments.end());
  Args.append({A.Places, F->getArg(W.U.Arity + 1), Used});
  B.CreateCall(A.Repair, Args);
  B.CreateStore(B.getInt64(0), A.Used);
  B.CreateBr(Done);
  B.SetInsertPoint(Done);
}

/// Puts the lanes \p Hard of the block at \p Base aside and goes to \p Easy; or
/// returns with \p B where too many are hard or the list is full.
static void emitPutAside(const WidenWork &W, IRBuilder<> &B, const Aside &A,
                         Value *Hard, Value *Base, BasicBlock *Easy) {
  Function *F = B.GetInsertBlock()->getParent();
  BasicBlock *Few = BasicBlock::Create(W.Ctx, "hard.few", F);
  BasicBlock *Many = BasicBlock::Create(W.Ctx, "hard.many", F);
  Value *Count = B.CreateUnaryIntrinsic(Intrinsic::ctpop, Hard);
  Value *IsFew =
      B.CreateICmpULE(Count, ConstantInt::get(Hard->getType(), A.MostOfBlock));
  Value *HasRoom = B.CreateICmpULE(B.CreateLoad(B.getInt64Ty(), A.Used, "used"),
                                   B.getInt64(A.Capacity - A.MostOfBlock));
  B.CreateCondBr(B.CreateAnd(IsFew, HasRoom), Few, Many);
  B.SetInsertPoint(Few);
  emitEachLane(W, B, Hard, [&](Value *Lane) {
    Value *Used = B.CreateLoad(B.getInt64Ty(), A.Used, "used");
    Value *Place = B.CreateNUWAdd(Base, Lane, "place");
    for (unsigned I = 0; I < W.U.Arity; ++I) {
      Value *X = B.CreateAlignedLoad(
          W.ElemTy, B.CreateInBoundsGEP(W.ElemTy, F->getArg(1 + I), Place),
          W.elementAlign(), "x");
      B.CreateAlignedStore(X,
                           B.CreateInBoundsGEP(W.ElemTy, A.Arguments[I], Used),
                           W.elementAlign());
    }
    B.CreateStore(Place, B.CreateInBoundsGEP(B.getInt64Ty(), A.Places, Used));
    B.CreateStore(B.CreateNUWAdd(Used, B.getInt64(1)), A.Used);
  });
  B.CreateBr(Easy);
  B.SetInsertPoint(Many);
}

/// One block of an array form: load, run, repair or put aside, store. Returns
/// with \p B behind the store. \p Mask is null where all \p Lanes are live, and
/// \p A where no lane can be put aside.
static void emitArrayBlock(const WidenWork &W, IRBuilder<> &B, Function *Fixup,
                           const Aside *A, unsigned Lanes, Value *Base,
                           Value *Mask, Value *Count) {
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
      emitLanes(W, B, W.firstStep(), Args, Lanes, /*KeepFlags=*/A);
  BasicBlock *Join = nullptr;
  if (First.Hard) {
    BasicBlock *Slow = BasicBlock::Create(W.Ctx, "hard", F);
    BasicBlock *Easy = BasicBlock::Create(W.Ctx, "easy", F);
    Join = BasicBlock::Create(W.Ctx, "stored", F);
    Value *Any = First.Hard, *Todo = nullptr;
    SmallVector<Value *, 4> Parts;
    // On x86-64 a mask stands in the block of the comparisons; behind the
    // branch it would be packed as bytes. AVX-512 has registers for masks, and
    // one instruction tests two of them; else moving one to a general register
    // is one instruction for each.
    if (A && Triple(W.M.getTargetTriple()).isX86()) {
      Parts = hardParts(W, B, First, Lanes);
      if (W.RegisterBits == 512) {
        Any = anyOfParts(B, Parts);
      } else {
        Todo = joinParts(B, Parts, Lanes);
        Any = B.CreateIsNotNull(Todo);
      }
    }
    B.CreateCondBr(Any, Slow, Easy, W.unlikely());
    B.SetInsertPoint(Slow);
    if (A) {
      if (Parts.empty())
        Parts = hardParts(W, B, First, Lanes);
      emitPutAside(W, B, *A, Todo ? Todo : joinParts(B, Parts, Lanes), Base,
                   Easy);
    }
    Pointers.push_back(Count);
    B.CreateCall(Fixup, Pointers);
    if (A)
      emitRepairCall(W, B, *A, A->Capacity - A->MostOfBlock);
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
  std::optional<Aside> A;
  // A fast path leaves too few lanes for it to pay.
  if (W.Quick) {
    A = emitAside(W, B, Fixup, Lanes);
    // LLVM spills registers to where the caller's frame happens to end. One
    // that straddles two lines of the cache, or two pages, takes its time.
    F->addFnAttr(
        Attribute::getWithStackAlignment(W.Ctx, Align(W.RegisterBits / 8)));
  }

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
  emitArrayBlock(W, B, Fixup, A ? &*A : nullptr, Lanes, I, nullptr,
                 B.getInt64(Lanes));
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
  if (A)
    emitRepairCall(W, B, *A, 0);
  Value *Left = B.CreateSub(N, Base, "left");
  B.CreateCondBr(B.CreateICmpSGT(Left, B.getInt64(0)), Tail, Exit);

  B.SetInsertPoint(Tail);
  emitArrayBlock(W, B, Fixup, nullptr, Lanes, Base, laneMask(B, Left, Lanes),
                 Left);
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
