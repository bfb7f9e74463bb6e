//===- Instrument.cpp - Forms that watch themselves -----------------------===//
// udf-instrument: makes functions count what goes in and what comes out.
//===----------------------------------------------------------------------===//
//
// The body of a function F moves into an internal function F.body, and F
// becomes what watches it. A scalar or vector form compares its arguments and
// results with the bounds in its cell (llvm/runtime/udfprof.h): no store but
// that of the count of calls, and one branch that is hardly ever taken. Behind
// it lies the code of llvm/runtime/observe.c, which looks closer. An array
// form calls observe.c at once, which calls F.body on chunks.
//
//===----------------------------------------------------------------------===//

#include "Instrument.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MathExtras.h"

#define DEBUG_TYPE "udf-instrument"

using namespace llvm;

STATISTIC(NumInstrumented, "Number of functions instrumented");

static cl::opt<std::string>
    ManifestPath("udf-instrument-manifest", cl::value_desc("file"),
                 cl::desc("JSON manifest of the functions udf-instrument "
                          "makes watch themselves"));

static constexpr StringLiteral ManifestWhat = "udf-instrument: manifest";

// On a function that is done, with its slot.
static constexpr StringLiteral DoneMark = "udf-instrument";

namespace {

// The words of struct udfprof_cell that generated code reads.
// tests/torch/test_collect.py compares them with udfprof.h.
enum CellOffset : unsigned {
  InLow = 0,
  InHigh = 8,
  OutLow = 16,
  OutHigh = 24,
  Calls = 32,
  LookMask = 40,
  TimeMask = 48,
  SampleMask = 56
};

// Calls that are timed together: one alone would be timed by its latency,
// where a loop over a tensor sees its throughput.
constexpr unsigned TimedCalls = 8;

struct Watched {
  std::string Symbol;
  std::string Kind; // scalar, v<lanes>, array, sincos
  bool IsDouble = false;
  unsigned Arity = 1;
  unsigned Slot = 0;
  int64_t Chunk = 0; // array only: elements per call of the body, 0 for all
};

class Instrumenter {
public:
  Instrumenter(Module &M, const Watched &W)
      : M(M), Ctx(M.getContext()), W(W),
        ElemTy(W.IsDouble ? Type::getDoubleTy(Ctx) : Type::getFloatTy(Ctx)) {}

  /// Finds the function; reports what is wrong and returns false.
  bool resolve();
  void emit();

private:
  FunctionType *expectedType() const;
  Function *moveBody();
  std::string observer(StringRef What, bool WithLanes = true) const;
  void emitLanes(Function *Body);
  Function *emitCold(Function *Body);
  void emitTiming(IRBuilder<> &B, Function *Cold, Function *Body, Value *Cell,
                  ArrayRef<Value *> Args);
  void emitArray(Function *Body);
  void emitJoint(Function *Body);
  Value *isOld(IRBuilder<> &B, Value *X, Value *Cell, unsigned LowAt);
  Intrinsic::ID classifier(Type *T) const;
  CallInst *callBody(IRBuilder<> &B, Function *Body, ArrayRef<Value *> Args,
                     Attribute::AttrKind Inlining) const;
  Value *word(IRBuilder<> &B, Value *Cell, unsigned Offset) const {
    return B.CreateInBoundsGEP(B.getInt8Ty(), Cell, B.getInt64(Offset));
  }
  /// The number of calls before this one, which is counted already.
  Value *callsBefore(IRBuilder<> &B, Value *Cell) const {
    return B.CreateSub(B.CreateAlignedLoad(B.getInt64Ty(),
                                           word(B, Cell, CellOffset::Calls),
                                           Align(8)),
                       B.getInt64(1), "before");
  }
  MDNode *unlikely() const {
    return MDBuilder(Ctx).createBranchWeights(1, (1u << 20) - 1);
  }
  unsigned lanes() const {
    auto *V = dyn_cast<FixedVectorType>(F->getReturnType());
    return V ? V->getNumElements() : 1;
  }

  Module &M;
  LLVMContext &Ctx;
  const Watched &W;
  Type *ElemTy;
  Function *F = nullptr;
};

} // namespace

//===----------------------------------------------------------------------===//
// The manifest
//===----------------------------------------------------------------------===//

static bool readWatched(LLVMContext &Ctx, StringRef Where,
                        const json::Object &Entry, Watched &W) {
  std::optional<StringRef> Symbol = Entry.getString("symbol");
  if (!Symbol || Symbol->empty()) {
    udf::usageError(Ctx, Where + ": 'symbol' must be a non-empty string");
    return false;
  }
  W.Symbol = Symbol->str();
  std::string Here = (Where + " (" + W.Symbol + ")").str();

  std::optional<StringRef> Kind = Entry.getString("form");
  unsigned Lanes = 0;
  if (Kind) {
    StringRef Number = *Kind;
    if (Number.consume_front("v") && Number.getAsInteger(10, Lanes))
      Lanes = 0;
  }
  if (!Kind || (*Kind != "scalar" && *Kind != "array" && *Kind != "sincos" &&
                (!isPowerOf2_32(Lanes) || Lanes < 2 || Lanes > 16))) {
    udf::usageError(Ctx, Here + ": 'form' must be scalar, array, sincos or "
                                "v<lanes> with a power of two from 2 to 16");
    return false;
  }
  W.Kind = Kind->str();

  std::optional<StringRef> Ty = Entry.getString("type");
  if (!Ty || (*Ty != "float" && *Ty != "double")) {
    udf::usageError(Ctx, Here + ": 'type' must be \"float\" or \"double\"");
    return false;
  }
  W.IsDouble = *Ty == "double";

  std::optional<int64_t> Arity = Entry.getInteger("arity");
  if (!Arity || (*Arity != 1 && *Arity != 2)) {
    udf::usageError(Ctx, Here + ": 'arity' must be 1 or 2");
    return false;
  }
  W.Arity = static_cast<unsigned>(*Arity);

  std::optional<int64_t> Slot = Entry.getInteger("slot");
  if (!Slot || *Slot < 0 || *Slot > 0xffff) {
    udf::usageError(Ctx, Here + ": 'slot' must be a number from 0 to 65535");
    return false;
  }
  W.Slot = static_cast<unsigned>(*Slot);

  if (const json::Value *Chunk = Entry.get("chunk")) {
    std::optional<int64_t> Number = Chunk->getAsInteger();
    if (!Number || *Number < 0) {
      udf::usageError(Ctx, Here + ": 'chunk' must be a number of elements, or "
                                  "0 for all at once");
      return false;
    }
    W.Chunk = *Number;
  }
  return true;
}

static bool readManifest(LLVMContext &Ctx, StringRef Path,
                         SmallVectorImpl<Watched> &All) {
  std::optional<json::Value> Root = udf::readJson(Ctx, ManifestWhat, Path);
  if (!Root)
    return false;
  std::string Where = (ManifestWhat + " '" + Path + "'").str();
  const json::Object *Top = Root->getAsObject();
  const json::Array *Entries = Top ? Top->getArray("watch") : nullptr;
  if (!Entries) {
    udf::usageError(Ctx, Where + " must be an object with an array 'watch'");
    return false;
  }
  bool Ok = true;
  for (const auto &[Index, Item] : enumerate(*Entries)) {
    std::string Here =
        (Where + ": watch[" + Twine(static_cast<unsigned>(Index)) + "]").str();
    const json::Object *Entry = Item.getAsObject();
    if (!Entry) {
      udf::usageError(Ctx, Here + " must be an object");
      Ok = false;
      continue;
    }
    Watched W;
    if (readWatched(Ctx, Here, *Entry, W))
      All.push_back(std::move(W));
    else
      Ok = false;
  }
  return Ok;
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

FunctionType *Instrumenter::expectedType() const {
  Type *Pointer = PointerType::getUnqual(Ctx);
  Type *Void = Type::getVoidTy(Ctx);
  if (W.Kind == "array") {
    Type *I64 = Type::getInt64Ty(Ctx);
    SmallVector<Type *, 5> Params{I64};
    Params.append(W.Arity + 1, Pointer);
    Params.push_back(I64);
    return FunctionType::get(Void, Params, false);
  }
  if (W.Kind == "sincos")
    return FunctionType::get(Void, {ElemTy, Pointer, Pointer}, false);
  Type *T = ElemTy;
  if (W.Kind != "scalar") {
    unsigned Lanes = 0;
    StringRef(W.Kind).drop_front().getAsInteger(10, Lanes);
    T = FixedVectorType::get(ElemTy, Lanes);
  }
  return FunctionType::get(T, SmallVector<Type *, 2>(W.Arity, T), false);
}

bool Instrumenter::resolve() {
  F = M.getFunction(W.Symbol);
  if (!F || F->isDeclaration()) {
    udf::usageError(Ctx, "udf-instrument: the manifest names '" + W.Symbol +
                             "', but module '" + M.getName() + "' " +
                             (F ? "only declares it" : "has no such function") +
                             "; compile the source that defines it, or let "
                             "udf-widen make it in the same run");
    return false;
  }
  FunctionType *Expected = expectedType();
  if (F->getFunctionType() != Expected) {
    udf::usageError(Ctx, "udf-instrument: '" + W.Symbol + "' of form " +
                             W.Kind + " must have the type " +
                             udf::typeName(Expected) + " but has " +
                             udf::typeName(F->getFunctionType()) +
                             "; correct 'form', 'type' and 'arity' in the "
                             "manifest");
    return false;
  }
  return true;
}

/// Moves blocks and arguments of F into a new internal function. F keeps its
/// name, so whoever calls it is watched, other functions of the module too.
Function *Instrumenter::moveBody() {
  Function *Body =
      Function::Create(F->getFunctionType(), GlobalValue::InternalLinkage,
                       F->getName() + ".body", M);
  Body->copyAttributesFrom(F);
  Body->setLinkage(GlobalValue::InternalLinkage);
  Body->setVisibility(GlobalValue::DefaultVisibility);
  Body->setDSOLocal(true);
  Body->setComdat(nullptr);
  Body->setSubprogram(F->getSubprogram());
  F->setSubprogram(nullptr);
  Body->splice(Body->begin(), F);
  for (auto [From, To] : zip(F->args(), Body->args())) {
    From.replaceAllUsesWith(&To);
    To.takeName(&From);
  }
  // What the body promised about memory and recursion no longer holds of a
  // function that counts, and nothing may be folded over its results.
  for (Attribute::AttrKind Kind :
       {Attribute::Memory, Attribute::Speculatable, Attribute::NoSync,
        Attribute::NoFree, Attribute::NoCallback, Attribute::NoRecurse,
        Attribute::WillReturn, Attribute::AlwaysInline, Attribute::MustProgress,
        Attribute::OptimizeNone})
    F->removeFnAttr(Kind);
  Body->removeFnAttr(Attribute::AlwaysInline);
  Body->removeFnAttr(Attribute::OptimizeNone);
  Body->removeFnAttr(Attribute::NoInline);
  return Body;
}

CallInst *Instrumenter::callBody(IRBuilder<> &B, Function *Body,
                                 ArrayRef<Value *> Args,
                                 Attribute::AttrKind Inlining) const {
  CallInst *Y = B.CreateCall(Body, Args);
  Y->setCallingConv(Body->getCallingConv());
  Y->addFnAttr(Inlining);
  return Y;
}

/// The name of a function of observe.c for this type and number of lanes.
std::string Instrumenter::observer(StringRef What, bool WithLanes) const {
  std::string Name = ("__udf_" + What + "_" + (W.IsDouble ? "d" : "f")).str();
  return WithLanes ? Name + utostr(lanes()) : Name;
}

//===----------------------------------------------------------------------===//
// Scalar and vector forms
//===----------------------------------------------------------------------===//

/// The instruction that tells classes of numbers apart, where the CPU that F is
/// compiled for has one for this type.
Intrinsic::ID Instrumenter::classifier(Type *T) const {
  if (!T->isVectorTy() || !F->getFnAttribute("target-features")
                               .getValueAsString()
                               .contains("+avx512dq"))
    return Intrinsic::not_intrinsic;
  switch (T->getPrimitiveSizeInBits().getFixedValue()) {
  case 512:
    return W.IsDouble ? Intrinsic::x86_avx512_fpclass_pd_512
                      : Intrinsic::x86_avx512_fpclass_ps_512;
  case 256:
    return W.IsDouble ? Intrinsic::x86_avx512_fpclass_pd_256
                      : Intrinsic::x86_avx512_fpclass_ps_256;
  default:
    return Intrinsic::not_intrinsic;
  }
}

/// Whether each lane of X needs no second look: it is inside the bounds, no
/// NaN, not zero, and not subnormal. Infinities are outside, since bounds are
/// finite. Under DAZ a subnormal compares as zero, and is caught as such.
/// Conditions that all hold become one chain of masked comparisons.
Value *Instrumenter::isOld(IRBuilder<> &B, Value *X, Value *Cell,
                           unsigned LowAt) {
  Type *T = X->getType();
  auto Splat = [&](Value *V) {
    return T->isVectorTy() ? B.CreateVectorSplat(lanes(), V) : V;
  };
  Value *Low =
      Splat(B.CreateAlignedLoad(ElemTy, word(B, Cell, LowAt), Align(8), "low"));
  Value *High = Splat(
      B.CreateAlignedLoad(ElemTy, word(B, Cell, LowAt + 8), Align(8), "high"));
  APFloat Smallest = APFloat::getSmallestNormalized(ElemTy->getFltSemantics());
  Value *Inside =
      B.CreateAnd(B.CreateFCmpOGE(X, Low), B.CreateFCmpOLE(X, High));
  if (Intrinsic::ID Classify = classifier(T)) {
    // Zeros (2, 4) and subnormals (32), in one instruction instead of two and
    // a constant.
    Value *Tiny = B.CreateIntrinsic(Classify, {}, {X, B.getInt32(2 | 4 | 32)});
    return B.CreateAnd(Inside, B.CreateNot(Tiny));
  }
  return B.CreateAnd(Inside,
                     B.CreateFCmpOGE(B.CreateUnaryIntrinsic(Intrinsic::fabs, X),
                                     Splat(ConstantFP::get(Ctx, Smallest))));
}

/// Measures some calls of the body when the cell asks for it.
void Instrumenter::emitTiming(IRBuilder<> &B, Function *Cold, Function *Body,
                              Value *Cell, ArrayRef<Value *> Args) {
  Type *I64 = B.getInt64Ty();
  Value *Before = callsBefore(B, Cell);
  Value *Mask =
      B.CreateAlignedLoad(I64, word(B, Cell, CellOffset::TimeMask), Align(8));
  BasicBlock *Time = BasicBlock::Create(Ctx, "time", Cold);
  BasicBlock *Loop = BasicBlock::Create(Ctx, "repeat", Cold);
  BasicBlock *Timed = BasicBlock::Create(Ctx, "timed", Cold);
  BasicBlock *Run = BasicBlock::Create(Ctx, "run", Cold);
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Before, Mask)), Time, Run);

  B.SetInsertPoint(Time);
  Value *Start = B.CreateIntrinsic(Intrinsic::readcyclecounter, {}, {});
  B.CreateBr(Loop);
  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(I64, 2);
  SmallVector<Value *, 2> Fresh;
  // An argument that went through an empty instruction is another one, so no
  // call of the loop can be taken for the result of the one before.
  for (Value *Arg : Args)
    Fresh.push_back(B.CreateCall(
        InlineAsm::get(
            FunctionType::get(Arg->getType(), {Arg->getType()}, false), "",
            lanes() > 1 && Arg->getType()->getPrimitiveSizeInBits() == 512
                ? "=v,0"
                : "=x,0",
            /*hasSideEffects=*/true),
        {Arg}));
  Value *Y = callBody(B, Body, Fresh, Attribute::NoInline);
  B.CreateCall(InlineAsm::get(
                   FunctionType::get(B.getVoidTy(), {Y->getType()}, false), "",
                   Y->getType()->getPrimitiveSizeInBits() == 512 ? "v" : "x",
                   /*hasSideEffects=*/true),
               {Y});
  Value *Next = B.CreateNUWAdd(I, B.getInt64(1));
  I->addIncoming(B.getInt64(0), Time);
  I->addIncoming(Next, Loop);
  B.CreateCondBr(B.CreateICmpEQ(Next, B.getInt64(TimedCalls)), Timed, Loop);

  B.SetInsertPoint(Timed);
  Value *Ticks = B.CreateSub(
      B.CreateIntrinsic(Intrinsic::readcyclecounter, {}, {}), Start);
  FunctionCallee Store = M.getOrInsertFunction("udfprof_time", B.getVoidTy(),
                                               Cell->getType(), I64, I64);
  B.CreateCall(Store, {Cell, Ticks, B.getInt64(TimedCalls * lanes())});
  B.CreateBr(Run);
  B.SetInsertPoint(Run);
}

/// T F.cold(ptr cell, T x[, T x2]): the whole call of one that is sampled, or
/// that has no cell yet (null).
Function *Instrumenter::emitCold(Function *Body) {
  Type *Pointer = PointerType::getUnqual(Ctx);
  SmallVector<Type *, 3> Params{Pointer};
  append_range(Params, F->getFunctionType()->params());
  Function *Cold =
      Function::Create(FunctionType::get(F->getReturnType(), Params, false),
                       GlobalValue::InternalLinkage, F->getName() + ".cold", M);
  for (Attribute A : F->getAttributes().getFnAttrs())
    if (A.isStringAttribute() && A.getKindAsString() != DoneMark)
      Cold->addFnAttr(A);
  if (F->hasFnAttribute(Attribute::UWTable))
    Cold->addFnAttr(F->getFnAttribute(Attribute::UWTable));
  Cold->addFnAttr(Attribute::NoInline);
  Cold->addFnAttr(Attribute::Cold);

  BasicBlock *Entry = BasicBlock::Create(Ctx, "entry", Cold);
  BasicBlock *Find = BasicBlock::Create(Ctx, "find", Cold);
  BasicBlock *Found = BasicBlock::Create(Ctx, "found", Cold);
  IRBuilder<> B(Entry);
  Type *I64 = B.getInt64Ty();
  SmallVector<Value *, 2> Args;
  for (Argument &A : drop_begin(Cold->args()))
    Args.push_back(&A);
  B.CreateCondBr(B.CreateIsNull(Cold->getArg(0)), Find, Found);
  B.SetInsertPoint(Find);
  FunctionCallee Lookup =
      M.getOrInsertFunction("udfprof_cell", Pointer, B.getInt32Ty());
  Value *New = B.CreateCall(Lookup, {B.getInt32(W.Slot)}, "new");
  Value *CallsAt = word(B, New, CellOffset::Calls);
  B.CreateAlignedStore(
      B.CreateAdd(B.CreateAlignedLoad(I64, CallsAt, Align(8)), B.getInt64(1)),
      CallsAt, Align(8));
  B.CreateBr(Found);

  B.SetInsertPoint(Found);
  PHINode *Cell = B.CreatePHI(Pointer, 2, "cell");
  Cell->addIncoming(Cold->getArg(0), Entry);
  Cell->addIncoming(New, Find);
  emitTiming(B, Cold, Body, Cell, Args);

  Value *Y = callBody(B, Body, Args, Attribute::NoInline);
  Value *Before = callsBefore(B, Cell);
  Value *Mask =
      B.CreateAlignedLoad(I64, word(B, Cell, CellOffset::SampleMask), Align(8));
  BasicBlock *Sample = BasicBlock::Create(Ctx, "sample", Cold);
  BasicBlock *Observe = BasicBlock::Create(Ctx, "observe", Cold);
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Before, Mask)), Sample, Observe);
  SmallVector<Value *, 4> All{Cell};
  append_range(All, Args);
  All.push_back(Y);
  SmallVector<Type *, 4> Types;
  for (Value *V : All)
    Types.push_back(V->getType());
  auto *Ty = FunctionType::get(F->getReturnType(), Types, false);
  for (auto [Block, What] :
       {std::pair{Sample, "sample"}, {Observe, "observe"}}) {
    B.SetInsertPoint(Block);
    CallInst *Z = B.CreateCall(
        M.getOrInsertFunction(observer(What + utostr(W.Arity)), Ty), All);
    Z->setTailCall();
    B.CreateRet(Z);
  }
  return Cold;
}

void Instrumenter::emitLanes(Function *Body) {
  Function *Cold = emitCold(Body);
  BasicBlock *Entry = BasicBlock::Create(Ctx, "entry", F);
  BasicBlock *Known = BasicBlock::Create(Ctx, "known", F);
  BasicBlock *Hot = BasicBlock::Create(Ctx, "hot", F);
  BasicBlock *ColdCall = BasicBlock::Create(Ctx, "cold", F);
  BasicBlock *Look = BasicBlock::Create(Ctx, "look", F);
  BasicBlock *Done = BasicBlock::Create(Ctx, "done", F);
  IRBuilder<> B(Entry);
  Type *Pointer = B.getPtrTy();
  Type *I64 = B.getInt64Ty();
  SmallVector<Value *, 2> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);

  auto *Row =
      cast<GlobalVariable>(M.getOrInsertGlobal("udfprof_row", Pointer, [&] {
        auto *G = new GlobalVariable(
            M, Pointer, /*isConstant=*/false, GlobalValue::ExternalLinkage,
            /*Initializer=*/nullptr, "udfprof_row", /*InsertBefore=*/nullptr,
            GlobalValue::InitialExecTLSModel);
        return G;
      }));
  Value *Cells = B.CreateAlignedLoad(Pointer, B.CreateThreadLocalAddress(Row),
                                     Align(8), "cells");
  Value *Cell = B.CreateAlignedLoad(
      Pointer, B.CreateInBoundsGEP(Pointer, Cells, B.getInt64(W.Slot)),
      Align(8), "cell");
  B.CreateCondBr(B.CreateIsNull(Cell), ColdCall, Known, unlikely());

  B.SetInsertPoint(Known);
  Value *CallsAt = word(B, Cell, CellOffset::Calls);
  Value *Before = B.CreateAlignedLoad(I64, CallsAt, Align(8), "calls");
  B.CreateAlignedStore(B.CreateAdd(Before, B.getInt64(1)), CallsAt, Align(8));
  Value *Mask =
      B.CreateAlignedLoad(I64, word(B, Cell, CellOffset::LookMask), Align(8));
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Before, Mask)), ColdCall, Hot,
                 unlikely());

  B.SetInsertPoint(ColdCall);
  PHINode *Given = B.CreatePHI(Pointer, 2);
  Given->addIncoming(Cell, Entry);
  Given->addIncoming(Cell, Known);
  SmallVector<Value *, 3> ColdArgs{Given};
  append_range(ColdArgs, Args);
  CallInst *Z = B.CreateCall(Cold, ColdArgs);
  Z->setTailCall();
  B.CreateRet(Z);

  B.SetInsertPoint(Hot);
  Value *Y = callBody(B, Body, Args, Attribute::AlwaysInline);
  Value *Old = isOld(B, Y, Cell, CellOffset::OutLow);
  for (Value *Arg : Args)
    Old = B.CreateAnd(Old, isOld(B, Arg, Cell, CellOffset::InLow));
  if (lanes() > 1)
    Old = B.CreateICmpEQ(B.CreateBitCast(Old, B.getIntNTy(lanes())),
                         Constant::getAllOnesValue(B.getIntNTy(lanes())));
  B.CreateCondBr(Old, Done, Look,
                 MDBuilder(Ctx).createBranchWeights((1u << 20) - 1, 1));

  B.SetInsertPoint(Look);
  SmallVector<Value *, 4> All{Cell};
  append_range(All, Args);
  All.push_back(Y);
  SmallVector<Type *, 4> Types;
  for (Value *V : All)
    Types.push_back(V->getType());
  CallInst *Seen =
      B.CreateCall(M.getOrInsertFunction(
                       observer("observe" + utostr(W.Arity)),
                       FunctionType::get(F->getReturnType(), Types, false)),
                   All);
  Seen->setTailCall();
  B.CreateRet(Seen);
  B.SetInsertPoint(Done);
  B.CreateRet(Y);
}

//===----------------------------------------------------------------------===//
// Array forms and joint forms
//===----------------------------------------------------------------------===//

void Instrumenter::emitArray(Function *Body) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  Type *Pointer = B.getPtrTy();
  Type *I64 = B.getInt64Ty();
  FunctionCallee Watch = M.getOrInsertFunction(
      observer("watch_array", /*WithLanes=*/false),
      FunctionType::get(
          B.getVoidTy(),
          {B.getInt32Ty(), I64, Pointer, I64, Pointer, Pointer, Pointer, I64},
          false));
  Value *Second = ConstantPointerNull::get(PointerType::getUnqual(Ctx));
  if (W.Arity == 2)
    Second = F->getArg(2);
  B.CreateCall(Watch, {B.getInt32(W.Slot), B.getInt64(W.Chunk), Body,
                       F->getArg(0), F->getArg(1), Second,
                       F->getArg(W.Arity + 1), F->getArg(W.Arity + 2)});
  B.CreateRetVoid();
}

void Instrumenter::emitJoint(Function *Body) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  Value *X = F->getArg(0), *First = F->getArg(1), *Second = F->getArg(2);
  callBody(B, Body, {X, First, Second}, Attribute::AlwaysInline);
  FunctionCallee Joint = M.getOrInsertFunction(
      ("__udf_joint_" + Twine(W.IsDouble ? "d1" : "f1")).str(), B.getVoidTy(),
      B.getInt32Ty(), ElemTy, ElemTy, ElemTy);
  Align ElemAlign(W.IsDouble ? 8 : 4);
  B.CreateCall(Joint, {B.getInt32(W.Slot), X,
                       B.CreateAlignedLoad(ElemTy, First, ElemAlign),
                       B.CreateAlignedLoad(ElemTy, Second, ElemAlign)});
  B.CreateRetVoid();
}

void Instrumenter::emit() {
  Function *Body = moveBody();
  F->addFnAttr(DoneMark, utostr(W.Slot));
  if (W.Kind == "array")
    emitArray(Body);
  else if (W.Kind == "sincos")
    emitJoint(Body);
  else
    emitLanes(Body);
  udf::reportLine(Ctx, json::Object{{"pass", DEBUG_TYPE},
                                    {"module", M.getName()},
                                    {"symbol", W.Symbol},
                                    {"form", W.Kind},
                                    {"slot", W.Slot}});
  ++NumInstrumented;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

static bool runImpl(Module &M, StringRef Path) {
  SmallVector<Watched, 8> All;
  if (!readManifest(M.getContext(), Path, All))
    return false;
  // A pipeline that names the pass and clang's own may both run it.
  erase_if(All, [&](const Watched &W) {
    const Function *F = M.getFunction(W.Symbol);
    return F && F->hasFnAttribute(DoneMark);
  });
  SmallVector<Instrumenter, 8> Instrumenters;
  bool Ok = true;
  for (const Watched &W : All) {
    Instrumenters.emplace_back(M, W);
    Ok &= Instrumenters.back().resolve();
  }
  if (!Ok)
    return false;
  for (Instrumenter &I : Instrumenters)
    I.emit();
  return !Instrumenters.empty();
}

PreservedAnalyses udf::InstrumentPass::run(Module &M, ModuleAnalysisManager &) {
  std::string Path =
      optionOrEnvironment(ManifestPath, "UDFTORCH_INSTRUMENT_MANIFEST");
  if (Path.empty())
    return PreservedAnalyses::all();
  return runImpl(M, Path) ? PreservedAnalyses::none()
                          : PreservedAnalyses::all();
}
