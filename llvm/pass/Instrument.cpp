//===- Instrument.cpp - Forms that watch themselves -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-instrument: makes functions count what goes in and what comes out.
//
// The body of a function F moves into an internal function F.body, and F
// becomes the code that watches it. A scalar or vector form counts down to the
// next call that is sampled. It compares its arguments with bounds
// (llvm/runtime/udfprof.h) before the body and its results after it; these
// branches are hardly ever taken. They lead to the code of
// llvm/runtime/observe.c, which looks closer. Instructions that make masks take
// as long as several others, so the code here uses only those it cannot do
// without. An array form calls observe.c at once, which calls F.body on chunks.
//
// The results of a function with an `ordinary` range need no look: arguments
// between these bounds that are neither zero nor subnormal have ordinary
// results, and the extreme arguments have the extreme results. F then ends in a
// jump to the body.
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
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/MathExtras.h"
#include <tuple>

#define DEBUG_TYPE "udf-instrument"

using namespace llvm;

STATISTIC(NumInstrumented, "Number of functions instrumented");

static cl::opt<std::string>
    ManifestPath("udf-instrument-manifest", cl::value_desc("file"),
                 cl::desc("JSON manifest of the functions udf-instrument "
                          "makes watch themselves"));

static constexpr StringLiteral ManifestWhat = "udf-instrument: manifest";

// Marks a function that is done; the value is its slot.
static constexpr StringLiteral DoneMark = "udf-instrument";

namespace {

// The words of struct udfprof_hot that generated code reads and writes.
// tests/libtorch/test_collect.py compares them with udfprof.h.
enum HotOffset : unsigned {
  Left = 0,
  Zeros = 8,
  Cell = 16,
  InLow = 24,
  InHigh = 32,
  OutLow = 40,
  OutHigh = 48,
  Infinities = 56,
  HotSize = 64
};

// The same of struct udfprof_cell.
enum CellOffset : unsigned { Due = 0, Live = 4, HotOf = 8 };

// Bits of udfprof_cell::due.
constexpr unsigned DueSample = 1, DueTime = 2;

// These calls are timed together. One alone would show its latency, but a loop
// over a tensor sees the throughput.
constexpr unsigned TimedCalls = 8;

struct Watched {
  std::string Symbol;
  std::string Kind; // scalar, v<lanes>, array, sincos
  bool IsDouble = false;
  unsigned Arity = 1;
  unsigned Slot = 0;
  int64_t Chunk = 0; // array only: elements per call of the body, 0 for all
  bool IsOrdinary = false;
  double Low = 0, High = 0;
  // f(-inf) is 0 and f(0) is 1, so these arguments pass as well and are
  // counted.
  bool IsExponential = false;
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
  Function *emitLook(Function *Body);
  void emitTiming(IRBuilder<> &B, Function *Cold, Function *Body, Value *Cell,
                  Value *Due, ArrayRef<Value *> Args);
  void emitRowEnd(IRBuilder<> &B, Function *Cold, Function *Body, Value *Cell,
                  Value *Due, Value *X);
  Function *newCold(StringRef Suffix, ArrayRef<Type *> Params);
  CallInst *callObserver(IRBuilder<> &B, StringRef What,
                         ArrayRef<Value *> Values);
  Value *hot(IRBuilder<> &B);
  Value *callerOf(IRBuilder<> &B) const;
  Value *allLanes(IRBuilder<> &B, Value *Truth) const;
  void emitPassed(IRBuilder<> &B, Value *Hot, Value *Zero, Value *Infinity);
  std::pair<Value *, Value *> zeroAndInfinity(IRBuilder<> &B, Value *X);
  uint64_t encoding(double X) const;
  void emitArray(Function *Body);
  void emitJoint(Function *Body);
  Value *isOld(IRBuilder<> &B, Value *X, Value *Hot, unsigned LowAt);
  CallInst *callBody(IRBuilder<> &B, Function *Body, ArrayRef<Value *> Args,
                     Attribute::AttrKind Inlining) const;
  Value *word(IRBuilder<> &B, Value *Cell, unsigned Offset) const {
    return B.CreateInBoundsGEP(B.getInt8Ty(), Cell, B.getInt64(Offset));
  }
  MDNode *unlikely() const {
    return MDBuilder(Ctx).createBranchWeights(1, (1u << 20) - 1);
  }
  MDNode *likely() const {
    return MDBuilder(Ctx).createBranchWeights((1u << 20) - 1, 1);
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
  if (const json::Value *Ordinary = Entry.get("ordinary")) {
    const json::Array *Range = Ordinary->getAsArray();
    std::optional<double> Low, High;
    if (Range && Range->size() == 2) {
      Low = (*Range)[0].getAsNumber();
      High = (*Range)[1].getAsNumber();
    }
    if (!Low || !High || !(*Low < *High) || W.Arity != 1 ||
        (W.Kind != "scalar" && !Lanes)) {
      udf::usageError(Ctx, Here +
                               ": 'ordinary' must be two numbers in order, "
                               "for a scalar or vector form of one argument");
      return false;
    }
    W.IsOrdinary = true;
    W.Low = *Low;
    W.High = *High;
  }
  if (const json::Value *Exponential = Entry.get("exponential")) {
    std::optional<bool> Is = Exponential->getAsBoolean();
    if (!Is || (*Is && !W.IsOrdinary)) {
      udf::usageError(Ctx, Here + ": 'exponential' must be true or false and "
                                  "needs 'ordinary'");
      return false;
    }
    W.IsExponential = *Is;
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
/// name, so every caller is watched, including other functions of the module.
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
  // F now counts, so what the body promised about memory and recursion no
  // longer holds, and nothing may be folded over its results.
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

uint64_t Instrumenter::encoding(double X) const {
  APFloat Value(X);
  bool Inexact = false;
  Value.convert(ElemTy->getFltSemantics(), APFloat::rmNearestTiesToEven,
                &Inexact);
  return Value.bitcastToAPInt().getZExtValue();
}

/// The words of this function in the thread's row.
Value *Instrumenter::hot(IRBuilder<> &B) {
  Type *Pointer = B.getPtrTy();
  auto *Row =
      cast<GlobalVariable>(M.getOrInsertGlobal("udfprof_row", Pointer, [&] {
        auto *G = new GlobalVariable(
            M, Pointer, /*isConstant=*/false, GlobalValue::ExternalLinkage,
            /*Initializer=*/nullptr, "udfprof_row", /*InsertBefore=*/nullptr,
            GlobalValue::InitialExecTLSModel);
        return G;
      }));
  Value *Start = B.CreateAlignedLoad(Pointer, B.CreateThreadLocalAddress(Row),
                                     Align(8), "row");
  return word(B, Start, W.Slot * HotOffset::HotSize);
}

/// The address that the function is called from, which tells the operator.
Value *Instrumenter::callerOf(IRBuilder<> &B) const {
  return B.CreateIntrinsic(Intrinsic::returnaddress, {}, {B.getInt32(0)});
}

Value *Instrumenter::allLanes(IRBuilder<> &B, Value *Truth) const {
  if (lanes() == 1)
    return Truth;
  return B.CreateICmpEQ(B.CreateBitCast(Truth, B.getIntNTy(lanes())),
                        Constant::getAllOnesValue(B.getIntNTy(lanes())));
}

/// Whether each lane of X needs no second look: it is inside the bounds, and
/// not NaN, zero or subnormal. Infinities are outside, since bounds are finite.
/// A minimum and a maximum leave a value inside the bounds as it is; for
/// vectors that takes less time than two comparisons. Empty bounds are +inf and
/// 0, which leave only zeros as they are. Subnormals are recognised by their
/// encoding, whatever DAZ is.
Value *Instrumenter::isOld(IRBuilder<> &B, Value *X, Value *Hot,
                           unsigned LowAt) {
  Type *T = X->getType();
  auto Splat = [&](Value *V) {
    return T->isVectorTy() ? B.CreateVectorSplat(lanes(), V) : V;
  };
  Value *Low =
      Splat(B.CreateAlignedLoad(ElemTy, word(B, Hot, LowAt), Align(8), "low"));
  Value *High = Splat(
      B.CreateAlignedLoad(ElemTy, word(B, Hot, LowAt + 8), Align(8), "high"));
  unsigned Bits = W.IsDouble ? 64 : 32;
  Type *Int = T->getWithNewType(B.getIntNTy(Bits));
  Value *Encoding = B.CreateBitCast(X, Int);
  Value *Clamped = B.CreateSelect(B.CreateFCmpOGT(X, Low), X, Low);
  Clamped = B.CreateSelect(B.CreateFCmpOLT(Clamped, High), Clamped, High);
  Value *Inside = B.CreateICmpEQ(B.CreateBitCast(Clamped, Int), Encoding);
  Value *Exponent = B.CreateAnd(
      Encoding,
      ConstantInt::get(Int, W.IsDouble ? 0x7ff0000000000000 : 0x7f800000));
  return B.CreateAnd(Inside,
                     B.CreateICmpNE(Exponent, Constant::getNullValue(Int)));
}

/// Which lanes of X, an argument of an exponential, are zeros, and which are
/// negative infinities.
std::pair<Value *, Value *> Instrumenter::zeroAndInfinity(IRBuilder<> &B,
                                                          Value *X) {
  unsigned Bits = W.IsDouble ? 64 : 32;
  Type *Int = X->getType()->getWithNewType(B.getIntNTy(Bits));
  Value *Encoding = B.CreateBitCast(X, Int);
  // Read from a variable (of observe.c), or LLVM would compare with 0.0, which
  // subnormals equal under DAZ.
  std::string Name = ("__udf_magnitude_" + Twine(W.IsDouble ? "d" : "f")).str();
  Type *ElemInt = B.getIntNTy(Bits);
  auto *Variable = cast<GlobalVariable>(M.getOrInsertGlobal(Name, ElemInt, [&] {
    auto *G = new GlobalVariable(M, ElemInt, /*isConstant=*/false,
                                 GlobalValue::ExternalLinkage,
                                 /*Initializer=*/nullptr, Name);
    G->setVisibility(GlobalValue::HiddenVisibility);
    G->setDSOLocal(true);
    return G;
  }));
  Value *Mask = B.CreateAlignedLoad(ElemInt, Variable, Align(Bits / 8));
  if (lanes() > 1)
    Mask = B.CreateVectorSplat(lanes(), Mask);
  Value *Magnitude = B.CreateAnd(Encoding, Mask);
  Value *Zero = B.CreateICmpEQ(Magnitude, Constant::getNullValue(Int), "zero");
  Value *Infinity = B.CreateICmpEQ(
      Encoding,
      ConstantInt::get(Int, APFloat::getInf(ElemTy->getFltSemantics(),
                                            /*Negative=*/true)
                                .bitcastToAPInt()),
      "infinity");
  return {Zero, Infinity};
}

/// Counts the lanes that are true.
void Instrumenter::emitPassed(IRBuilder<> &B, Value *Hot, Value *Zero,
                              Value *Infinity) {
  Type *I64 = B.getInt64Ty();
  for (auto [Offset, Is] :
       {std::pair<unsigned, Value *>{HotOffset::Zeros, Zero},
        {HotOffset::Infinities, Infinity}}) {
    Value *Count = Is;
    if (lanes() > 1)
      Count = B.CreateUnaryIntrinsic(
          Intrinsic::ctpop,
          B.CreateZExt(B.CreateBitCast(Is, B.getIntNTy(lanes())),
                       B.getInt32Ty()));
    Value *At = word(B, Hot, Offset);
    B.CreateAlignedStore(B.CreateAdd(B.CreateAlignedLoad(I64, At, Align(8)),
                                     B.CreateZExt(Count, I64)),
                         At, Align(8));
  }
}

/// Measures some calls of the body if the call is due for timing.
void Instrumenter::emitTiming(IRBuilder<> &B, Function *Cold, Function *Body,
                              Value *Cell, Value *Due, ArrayRef<Value *> Args) {
  Type *I64 = B.getInt64Ty();
  BasicBlock *Time = BasicBlock::Create(Ctx, "time", Cold);
  BasicBlock *Loop = BasicBlock::Create(Ctx, "repeat", Cold);
  BasicBlock *Timed = BasicBlock::Create(Ctx, "timed", Cold);
  BasicBlock *Run = BasicBlock::Create(Ctx, "run", Cold);
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Due, DueTime)), Run, Time);

  B.SetInsertPoint(Time);
  Value *Start = B.CreateIntrinsic(Intrinsic::readcyclecounter, {}, {});
  B.CreateBr(Loop);
  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(I64, 2);
  SmallVector<Value *, 2> Fresh;
  // An argument that went through an empty instruction counts as new, so no
  // call of the loop can reuse the result of the one before.
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

/// Creates a function beside F that is hardly ever called.
Function *Instrumenter::newCold(StringRef Suffix, ArrayRef<Type *> Params) {
  Function *Cold =
      Function::Create(FunctionType::get(F->getReturnType(), Params, false),
                       GlobalValue::InternalLinkage, F->getName() + Suffix, M);
  for (Attribute A : F->getAttributes().getFnAttrs())
    if (A.isStringAttribute() && A.getKindAsString() != DoneMark)
      Cold->addFnAttr(A);
  if (F->hasFnAttribute(Attribute::UWTable))
    Cold->addFnAttr(F->getFnAttribute(Attribute::UWTable));
  Cold->addFnAttr(Attribute::NoInline);
  Cold->addFnAttr(Attribute::Cold);
  return Cold;
}

/// A function of observe.c, which returns the last of the values.
CallInst *Instrumenter::callObserver(IRBuilder<> &B, StringRef What,
                                     ArrayRef<Value *> Values) {
  SmallVector<Type *, 4> Types;
  for (Value *V : Values)
    Types.push_back(V->getType());
  auto *Ty = FunctionType::get(F->getReturnType(), Types, false);
  CallInst *Z = B.CreateCall(M.getOrInsertFunction(observer(What), Ty), Values);
  Z->setTailCall();
  B.CreateRet(Z);
  return Z;
}

/// Handles a call that is due for nothing, such as the one that ends a row of
/// softmax. The lanes that belong to elements are checked like any others.
void Instrumenter::emitRowEnd(IRBuilder<> &B, Function *Cold, Function *Body,
                              Value *Cell, Value *Due, Value *X) {
  BasicBlock *Quick = BasicBlock::Create(Ctx, "quick", Cold);
  BasicBlock *Pass = BasicBlock::Create(Ctx, "pass", Cold);
  BasicBlock *Full = BasicBlock::Create(Ctx, "full", Cold);
  B.CreateCondBr(B.CreateIsNull(Due), Quick, Full);

  B.SetInsertPoint(Quick);
  Value *LiveAt = word(B, Cell, CellOffset::Live);
  Value *Live = B.CreateTrunc(
      B.CreateAlignedLoad(B.getInt32Ty(), LiveAt, Align(4), "live"),
      B.getIntNTy(lanes()));
  if (lanes() > 1)
    Live = B.CreateBitCast(Live, FixedVectorType::get(B.getInt1Ty(), lanes()));
  Value *Hot = B.CreateAlignedLoad(
      B.getPtrTy(), word(B, Cell, CellOffset::HotOf), Align(8), "hot");
  Value *Zero = nullptr, *Infinity = nullptr;
  Value *Passes =
      B.CreateOr(isOld(B, X, Hot, HotOffset::InLow), B.CreateNot(Live));
  if (W.IsExponential) {
    std::tie(Zero, Infinity) = zeroAndInfinity(B, X);
    Passes = B.CreateOr(Passes, B.CreateOr(Zero, Infinity));
  }
  B.CreateCondBr(allLanes(B, Passes), Pass, Full);

  B.SetInsertPoint(Pass);
  B.CreateAlignedStore(B.getInt32(~0u), LiveAt, Align(4));
  if (W.IsExponential)
    emitPassed(B, Hot, B.CreateAnd(Zero, Live), B.CreateAnd(Infinity, Live));
  CallInst *Y = callBody(B, Body, {X}, Attribute::NoInline);
  Y->setTailCall();
  B.CreateRet(Y);
  B.SetInsertPoint(Full);
}

/// T F.turn(ptr caller, T x[, T x2]): the whole call if it is sampled or timed,
/// or if its cell is not known.
Function *Instrumenter::emitCold(Function *Body) {
  Type *Pointer = PointerType::getUnqual(Ctx);
  SmallVector<Type *, 3> Params{Pointer};
  append_range(Params, F->getFunctionType()->params());
  Function *Cold = newCold(".turn", Params);
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", Cold));
  Type *I64 = B.getInt64Ty();
  SmallVector<Value *, 2> Args;
  for (Argument &A : drop_begin(Cold->args()))
    Args.push_back(&A);
  FunctionCallee Turn = M.getOrInsertFunction(
      "udfprof_turn", Pointer, B.getInt32Ty(), Pointer, I64, I64);
  uint64_t Low = W.IsOrdinary ? encoding(W.Low) : 0;
  uint64_t High = W.IsOrdinary ? encoding(W.High) : 0;
  Value *Cell = B.CreateCall(
      Turn,
      {B.getInt32(W.Slot), Cold->getArg(0), B.getInt64(Low), B.getInt64(High)},
      "cell");
  Value *Due = B.CreateAlignedLoad(
      B.getInt32Ty(), word(B, Cell, CellOffset::Due), Align(8), "due");
  if (W.IsOrdinary)
    emitRowEnd(B, Cold, Body, Cell, Due, Args[0]);
  emitTiming(B, Cold, Body, Cell, Due, Args);

  Value *Y = callBody(B, Body, Args, Attribute::NoInline);
  BasicBlock *Sample = BasicBlock::Create(Ctx, "sample", Cold);
  BasicBlock *Observe = BasicBlock::Create(Ctx, "observe", Cold);
  B.CreateCondBr(B.CreateIsNull(B.CreateAnd(Due, DueSample)), Observe, Sample);
  SmallVector<Value *, 4> All{Cell};
  append_range(All, Args);
  All.push_back(Y);
  B.SetInsertPoint(Sample);
  callObserver(B, "sample" + utostr(W.Arity), All);
  B.SetInsertPoint(Observe);
  callObserver(B, "observe" + utostr(W.Arity), All);
  return Cold;
}

/// T F.look(T x[, T x2]): the whole call if an argument is new.
Function *Instrumenter::emitLook(Function *Body) {
  Function *Look = newCold(".look", F->getFunctionType()->params());
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", Look));
  SmallVector<Value *, 4> All;
  for (Argument &A : Look->args())
    All.push_back(&A);
  Value *Y = callBody(B, Body, All, Attribute::NoInline);
  All.insert(All.begin(),
             B.CreateAlignedLoad(B.getPtrTy(), word(B, hot(B), HotOffset::Cell),
                                 Align(8), "cell"));
  All.push_back(Y);
  callObserver(B, "observe" + utostr(W.Arity), All);
  return Look;
}

void Instrumenter::emitLanes(Function *Body) {
  Function *Cold = emitCold(Body);
  Function *LookAt = emitLook(Body);
  BasicBlock *Entry = BasicBlock::Create(Ctx, "entry", F);
  BasicBlock *Known = BasicBlock::Create(Ctx, "known", F);
  BasicBlock *Old = BasicBlock::Create(Ctx, "old", F);
  BasicBlock *Turn = BasicBlock::Create(Ctx, "turn", F);
  BasicBlock *Look = BasicBlock::Create(Ctx, "look", F);
  IRBuilder<> B(Entry);
  Type *I64 = B.getInt64Ty();
  SmallVector<Value *, 2> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);

  Value *Hot = hot(B);
  Value *LeftAt = word(B, Hot, HotOffset::Left);
  Value *Left = B.CreateSub(B.CreateAlignedLoad(I64, LeftAt, Align(8), "left"),
                            B.getInt64(1));
  B.CreateAlignedStore(Left, LeftAt, Align(8));
  B.CreateCondBr(B.CreateICmpSLT(Left, B.getInt64(0)), Turn, Known, unlikely());

  B.SetInsertPoint(Turn);
  SmallVector<Value *, 3> TurnArgs{callerOf(B)};
  append_range(TurnArgs, Args);
  CallInst *Z = B.CreateCall(Cold, TurnArgs);
  Z->setTailCall();
  B.CreateRet(Z);

  B.SetInsertPoint(Known);
  Value *IsOld = isOld(B, Args[0], Hot, HotOffset::InLow);
  for (Value *Arg : drop_begin(Args))
    IsOld = B.CreateAnd(IsOld, isOld(B, Arg, Hot, HotOffset::InLow));
  if (W.IsExponential) {
    // Finding zeros takes longer than the test before it. Where none has come
    // up yet, none is expected. Where one has, all are looked for at once:
    // softmax makes one in each row, and no branch can predict which call holds
    // it.
    BasicBlock *Plain = BasicBlock::Create(Ctx, "plain", F);
    BasicBlock *Maybe = BasicBlock::Create(Ctx, "maybe", F);
    BasicBlock *Passed = BasicBlock::Create(Ctx, "passed", F);
    Value *Zeros =
        B.CreateAlignedLoad(I64, word(B, Hot, HotOffset::Zeros), Align(8));
    B.CreateCondBr(B.CreateIsNull(Zeros), Plain, Maybe);
    B.SetInsertPoint(Plain);
    B.CreateCondBr(allLanes(B, IsOld), Old, Maybe, likely());
    B.SetInsertPoint(Maybe);
    auto [Zero, Infinity] = zeroAndInfinity(B, Args[0]);
    B.CreateCondBr(allLanes(B, B.CreateOr(IsOld, B.CreateOr(Zero, Infinity))),
                   Passed, Look, likely());
    B.SetInsertPoint(Passed);
    emitPassed(B, Hot, Zero, Infinity);
    B.CreateBr(Old);
  } else {
    B.CreateCondBr(allLanes(B, IsOld), Old, Look, likely());
  }

  B.SetInsertPoint(Look);
  Z = B.CreateCall(LookAt, Args);
  Z->setTailCall();
  B.CreateRet(Z);

  B.SetInsertPoint(Old);
  CallInst *Y = callBody(B, Body, Args, Attribute::AlwaysInline);
  Y->setTailCall();
  if (W.IsOrdinary) {
    B.CreateRet(Y);
    return;
  }
  // Found again rather than kept over the body, which may be a call.
  Hot = hot(B);
  BasicBlock *Done = BasicBlock::Create(Ctx, "done", F);
  BasicBlock *Result = BasicBlock::Create(Ctx, "result", F);
  B.CreateCondBr(allLanes(B, isOld(B, Y, Hot, HotOffset::OutLow)), Done, Result,
                 likely());
  B.SetInsertPoint(Result);
  Value *Cell = B.CreateAlignedLoad(B.getPtrTy(), word(B, Hot, HotOffset::Cell),
                                    Align(8), "cell");
  callObserver(B, "result", {Cell, Y});
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
      FunctionType::get(B.getVoidTy(),
                        {B.getInt32Ty(), Pointer, I64, Pointer, I64, Pointer,
                         Pointer, Pointer, I64},
                        false));
  Value *Second = ConstantPointerNull::get(PointerType::getUnqual(Ctx));
  if (W.Arity == 2)
    Second = F->getArg(2);
  B.CreateCall(Watch, {B.getInt32(W.Slot), callerOf(B), B.getInt64(W.Chunk),
                       Body, F->getArg(0), F->getArg(1), Second,
                       F->getArg(W.Arity + 1), F->getArg(W.Arity + 2)});
  B.CreateRetVoid();
}

void Instrumenter::emitJoint(Function *Body) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  Value *X = F->getArg(0), *First = F->getArg(1), *Second = F->getArg(2);
  callBody(B, Body, {X, First, Second}, Attribute::AlwaysInline);
  FunctionCallee Joint = M.getOrInsertFunction(
      ("__udf_joint_" + Twine(W.IsDouble ? "d1" : "f1")).str(), B.getVoidTy(),
      B.getInt32Ty(), B.getPtrTy(), ElemTy, ElemTy, ElemTy);
  Align ElemAlign(W.IsDouble ? 8 : 4);
  B.CreateCall(Joint, {B.getInt32(W.Slot), callerOf(B), X,
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
  LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << W.Symbol << '\n');
  ++NumInstrumented;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

static bool runImpl(Module &M, StringRef Path) {
  SmallVector<Watched, 8> All;
  if (!readManifest(M.getContext(), Path, All))
    return false;
  // Both a pipeline that names the pass and clang's own may run it.
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
