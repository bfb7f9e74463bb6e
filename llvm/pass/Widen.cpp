//===- Widen.cpp - Every ABI of a scalar UDF ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-widen: makes scalar, vector and array forms from a scalar UDF.
//
// A UDF is either one scalar function, or a branch-free fast path together with
// an accurate path. The fast path also reports when its rounding is not
// certain. Each form runs the fast path on all its lanes and joins the flags.
// Only if one is set does it call a cold function, which runs the accurate path
// on the flagged lanes. A quick path, where there is one, comes before the fast
// one in the vector and array forms: the cold function then begins with the
// fast path.
//
// The pass itself widens no arithmetic. It writes a loop over the lanes of one
// block with a constant trip count, and metadata that tells LLVM's loop
// vectoriser how to treat it. The block's buffers are allocas that never
// escape, so SROA turns them into registers once the loop is straight-line
// code.
//
//===----------------------------------------------------------------------===//

#include "Widen.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/MathExtras.h"

#define DEBUG_TYPE "udf-widen"

using namespace llvm;

STATISTIC(NumFunctions, "Number of UDFs widened");
STATISTIC(NumForms, "Number of forms generated");

static cl::opt<std::string>
    ManifestPath("udf-widen-manifest", cl::value_desc("file"),
                 cl::desc("JSON manifest of the forms udf-widen makes"));

static cl::opt<unsigned> BlockOption(
    "udf-widen-block", cl::Hidden, cl::init(0),
    cl::desc("Elements per block of the array form (0: by the target)"));

static cl::opt<unsigned>
    WidthOption("udf-widen-width", cl::Hidden, cl::init(0),
                cl::desc("Lanes that the loop vectoriser is asked to take "
                         "together (0: by the target)"));

namespace {

struct Form {
  std::string Kind; // "scalar", "v<lanes>" or "array", as in the manifest
  unsigned Lanes;   // 1 for scalar, 0 for array
  std::string Symbol;
};

struct Udf {
  std::string Name;
  bool IsDouble = false;
  unsigned Arity = 1;
  std::string Scalar, Quick, Fast, Accurate; // empty when null or left out
  SmallVector<Form, 4> Forms;
};

/// Widens one UDF of one module.
class Widener {
public:
  Widener(Module &M, FunctionAnalysisManager &FAM, const Udf &U)
      : M(M), Ctx(M.getContext()), FAM(FAM), U(U),
        ElemTy(U.IsDouble ? Type::getDoubleTy(Ctx) : Type::getFloatTy(Ctx)) {}

  /// Looks up the UDF's functions; reports what is wrong and returns false.
  bool resolve();
  void emit();

private:
  Function *find(const std::string &Name, bool IsFast);
  FunctionType *formType(const Form &F) const;
  Function *declare(StringRef Symbol, FunctionType *Ty,
                    GlobalValue::LinkageTypes Linkage);
  Function *declareCold(const Twine &Symbol, FunctionType *Ty);
  void pinInlining();

  void emitScalar(Function *F);
  void emitVector(Function *F, unsigned Lanes);
  void emitArray(Function *F);
  Function *emitVectorFixup(const Twine &Symbol, unsigned Lanes);
  Function *emitArrayFixup(const Twine &Symbol, unsigned Block);

  struct Block {
    Value *Result; // <lanes x T>
    Value *Hard;   // i1, null when nothing can be hard
    Value *Flags;  // pointer to one i8 per lane, null unless asked for
  };
  Block emitLanes(IRBuilder<> &B, Function *Step, ArrayRef<Value *> Args,
                  unsigned Lanes, bool KeepFlags);
  Function *firstStep() const { return Quick ? Quick : Fast ? Fast : Scalar; }
  Value *emitAccurateLanes(IRBuilder<> &B, ArrayRef<Value *> Args,
                           unsigned Lanes, Value *Live);
  Value *maskedLoad(IRBuilder<> &B, Value *From, Value *Mask, unsigned Lanes);
  MDNode *loopMetadata(unsigned Lanes) const;
  MDNode *plainLoopMetadata() const;
  MDNode *unlikely() const {
    // Hard lanes are the exception by construction (one in hundreds or fewer);
    // the weight keeps their code out of the hot loop's layout and registers.
    return MDBuilder(Ctx).createBranchWeights(1, (1u << 20) - 1);
  }
  AllocaInst *entryAlloca(Function *F, Type *Ty, const Twine &Name,
                          Align Alignment) const;
  VectorType *vectorType(unsigned Lanes) const {
    return FixedVectorType::get(ElemTy, Lanes);
  }
  Align elementAlign() const { return Align(U.IsDouble ? 8 : 4); }
  Align vectorAlign(unsigned Lanes) const {
    return Align(std::min<uint64_t>(64, Lanes * elementAlign().value()));
  }

  Module &M;
  LLVMContext &Ctx;
  FunctionAnalysisManager &FAM;
  const Udf &U;
  Type *ElemTy;
  Function *Scalar = nullptr, *Quick = nullptr, *Fast = nullptr;
  Function *Accurate = nullptr;
  unsigned RegisterBits = 128;
};

} // namespace

//===----------------------------------------------------------------------===//
// The manifest
//===----------------------------------------------------------------------===//

static constexpr StringLiteral ManifestWhat = "udf-widen: manifest";

static bool readForms(LLVMContext &Ctx, StringRef Where,
                      const json::Object &Entry, Udf &U) {
  const json::Object *Forms = Entry.getObject("forms");
  if (!Forms || Forms->empty()) {
    udf::usageError(Ctx, Where + ": 'forms' must be a non-empty object that "
                                 "maps forms (scalar, v<lanes>, array) to "
                                 "symbols");
    return false;
  }
  for (const auto &[Key, SymbolValue] : *Forms) {
    std::optional<StringRef> Symbol = SymbolValue.getAsString();
    if (!Symbol || Symbol->empty()) {
      udf::usageError(Ctx, Where + ": the symbol of form '" +
                               Twine(StringRef(Key)) +
                               "' must be a non-empty string");
      return false;
    }
    Form F{StringRef(Key).str(), 0, Symbol->str()};
    StringRef Kind = F.Kind;
    if (Kind == "scalar") {
      F.Lanes = 1;
    } else if (Kind != "array") {
      if (!Kind.consume_front("v") || Kind.getAsInteger(10, F.Lanes) ||
          !isPowerOf2_32(F.Lanes) || F.Lanes < 2 || F.Lanes > 64) {
        udf::usageError(Ctx, Where + ": unknown form '" + F.Kind +
                                 "'; use scalar, array, or v<lanes> with a "
                                 "power of two from 2 to 64");
        return false;
      }
    }
    U.Forms.push_back(std::move(F));
  }
  // json::Object has no fixed order; the output must have one.
  llvm::sort(U.Forms, [](const Form &A, const Form &B) {
    return std::tie(A.Lanes, A.Kind) < std::tie(B.Lanes, B.Kind);
  });
  return true;
}

static bool readUdf(LLVMContext &Ctx, StringRef Where,
                    const json::Object &Entry, Udf &U) {
  std::optional<StringRef> Name = Entry.getString("name");
  if (!Name || Name->empty()) {
    udf::usageError(Ctx, Where + ": 'name' must be a non-empty string");
    return false;
  }
  U.Name = Name->str();
  std::string Here = (Where + " (" + U.Name + ")").str();

  std::optional<StringRef> Ty = Entry.getString("type");
  if (!Ty || (*Ty != "float" && *Ty != "double")) {
    udf::usageError(Ctx, Here + ": 'type' must be \"float\" or \"double\"");
    return false;
  }
  U.IsDouble = *Ty == "double";

  std::optional<int64_t> Arity = Entry.getInteger("arity");
  if (!Arity || (*Arity != 1 && *Arity != 2)) {
    udf::usageError(Ctx, Here + ": 'arity' must be 1 or 2");
    return false;
  }
  U.Arity = static_cast<unsigned>(*Arity);

  for (auto [Key, Field] : {std::pair{"scalar", &U.Scalar},
                            {"quick", &U.Quick},
                            {"fast", &U.Fast},
                            {"accurate", &U.Accurate}}) {
    const json::Value *V = Entry.get(Key);
    if (!V || V->kind() == json::Value::Null)
      continue;
    std::optional<StringRef> Text = V->getAsString();
    if (!Text || Text->empty()) {
      udf::usageError(Ctx, Here + ": '" + Key +
                               "' must be null or the name of a function");
      return false;
    }
    *Field = Text->str();
  }
  bool HasScalar = !U.Scalar.empty();
  bool HasFast = !U.Fast.empty(), HasAccurate = !U.Accurate.empty();
  if (HasFast != HasAccurate || HasScalar == HasFast) {
    udf::usageError(Ctx, Here + ": give either 'scalar' alone or 'fast' and "
                                "'accurate' together");
    return false;
  }
  if (!U.Quick.empty() && !HasFast) {
    udf::usageError(Ctx, Here + ": 'quick' goes before 'fast'; give 'fast' and "
                                "'accurate' too");
    return false;
  }
  return readForms(Ctx, Here, Entry, U);
}

static bool readManifest(LLVMContext &Ctx, StringRef Path,
                         SmallVectorImpl<Udf> &Udfs) {
  std::optional<json::Value> Root = udf::readJson(Ctx, ManifestWhat, Path);
  if (!Root)
    return false;
  std::string Where = (ManifestWhat + " '" + Path + "'").str();
  const json::Object *Top = Root->getAsObject();
  const json::Array *Functions = Top ? Top->getArray("functions") : nullptr;
  if (!Functions) {
    udf::usageError(Ctx, Where + " must be an object with an array "
                                 "'functions'");
    return false;
  }
  bool Ok = true;
  for (const auto &[Index, Item] : enumerate(*Functions)) {
    std::string Here =
        (Where + ": functions[" + Twine(static_cast<unsigned>(Index)) + "]")
            .str();
    const json::Object *Entry = Item.getAsObject();
    if (!Entry) {
      udf::usageError(Ctx, Here + " must be an object");
      Ok = false;
      continue;
    }
    Udf U;
    if (readUdf(Ctx, Here, *Entry, U))
      Udfs.push_back(std::move(U));
    else
      Ok = false;
  }
  return Ok;
}

//===----------------------------------------------------------------------===//
// The author's functions
//===----------------------------------------------------------------------===//

Function *Widener::find(const std::string &Name, bool IsFast) {
  Function *F = M.getFunction(Name);
  if (!F || F->isDeclaration()) {
    udf::usageError(
        Ctx, "udf-widen: the manifest names function '" + Name + "' for '" +
                 U.Name + "', but module '" + M.getName() + "' " +
                 (F ? "only declares it" : "has no such function") +
                 "; compile the source that defines it, and if it is static "
                 "and unused keep it alive with -femit-all-decls");
    return nullptr;
  }
  SmallVector<Type *, 3> Params(U.Arity, ElemTy);
  if (IsFast)
    Params.push_back(PointerType::getUnqual(Ctx));
  FunctionType *Expected = FunctionType::get(ElemTy, Params, false);
  if (F->getFunctionType() != Expected) {
    udf::usageError(Ctx, "udf-widen: function '" + Name + "' for '" + U.Name +
                             "' must have the type " + udf::typeName(Expected) +
                             " but has " + udf::typeName(F->getFunctionType()) +
                             "; correct its signature or 'type' and 'arity' "
                             "in the manifest");
    return nullptr;
  }
  return F;
}

bool Widener::resolve() {
  if (!U.Scalar.empty())
    return (Scalar = find(U.Scalar, /*IsFast=*/false));
  Fast = find(U.Fast, /*IsFast=*/true);
  Accurate = find(U.Accurate, /*IsFast=*/false);
  if (!U.Quick.empty())
    Quick = find(U.Quick, /*IsFast=*/true);
  return Fast && Accurate && (Quick || U.Quick.empty());
}

/// The lane loop only vectorises when it holds no call, so everything that the
/// fast path reaches is inlined, whatever the inliner's cost model says. The
/// accurate path stays out of line, where it costs nothing.
void Widener::pinInlining() {
  if (Scalar)
    Scalar->removeFnAttr(Attribute::OptimizeNone);
  for (Function *Root : {Quick, Fast}) {
    if (!Root)
      continue;
    Root->removeFnAttr(Attribute::OptimizeNone);
    SmallPtrSet<Function *, 8> Seen;
    SmallVector<Function *, 8> Todo{Root};
    while (!Todo.empty()) {
      Function *F = Todo.pop_back_val();
      if (!Seen.insert(F).second)
        continue;
      for (Instruction &I : instructions(*F))
        if (auto *Call = dyn_cast<CallBase>(&I))
          if (Function *Callee = Call->getCalledFunction())
            if (!Callee->isDeclaration() && !Seen.contains(Callee) &&
                !Callee->hasFnAttribute(Attribute::NoInline)) {
              Call->addFnAttr(Attribute::AlwaysInline);
              Todo.push_back(Callee);
            }
    }
    Root->removeFnAttr(Attribute::NoInline);
    Root->addFnAttr(Attribute::AlwaysInline);
  }
  if (Accurate) {
    Accurate->removeFnAttr(Attribute::AlwaysInline);
    Accurate->removeFnAttr(Attribute::InlineHint);
    Accurate->addFnAttr(Attribute::NoInline);
    Accurate->addFnAttr(Attribute::Cold);
  }
}

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

FunctionType *Widener::formType(const Form &F) const {
  if (F.Kind == "array") {
    // The ABI of MKL's vector math: (n, a, [b,] out, mode).
    Type *I64 = Type::getInt64Ty(Ctx);
    SmallVector<Type *, 5> Params{I64};
    Params.append(U.Arity + 1, PointerType::getUnqual(Ctx));
    Params.push_back(I64);
    return FunctionType::get(Type::getVoidTy(Ctx), Params, false);
  }
  Type *T = F.Lanes == 1 ? ElemTy : vectorType(F.Lanes);
  return FunctionType::get(T, SmallVector<Type *, 2>(U.Arity, T), false);
}

/// Declares a function that is compiled for the same machine and under the same
/// rules as the author's function.
Function *Widener::declare(StringRef Symbol, FunctionType *Ty,
                           GlobalValue::LinkageTypes Linkage) {
  Function *F = M.getFunction(Symbol);
  if (F) {
    if (!F->isDeclaration()) {
      udf::usageError(Ctx, "udf-widen: '" + Symbol +
                               "' is already defined in module '" +
                               M.getName() + "'; name another symbol");
      return nullptr;
    }
    if (F->getFunctionType() != Ty) {
      udf::usageError(Ctx, "udf-widen: '" + Symbol + "' is declared as " +
                               udf::typeName(F->getFunctionType()) +
                               " but the form has the type " +
                               udf::typeName(Ty) + "; correct the declaration");
      return nullptr;
    }
  } else {
    F = Function::Create(Ty, Linkage, Symbol, M);
  }
  F->setLinkage(Linkage);
  F->setVisibility(GlobalValue::DefaultVisibility);
  F->setDSOLocal(GlobalValue::isLocalLinkage(Linkage));

  static constexpr Attribute::AttrKind Copied[] = {
      Attribute::UWTable,           Attribute::SanitizeAddress,
      Attribute::SanitizeThread,    Attribute::SanitizeMemory,
      Attribute::SanitizeHWAddress, Attribute::StackProtect,
      Attribute::StackProtectReq,   Attribute::StackProtectStrong,
      Attribute::NullPointerIsValid};
  const Function *Model = Fast ? Fast : Scalar;
  for (Attribute A : Model->getAttributes().getFnAttrs())
    if (A.isStringAttribute())
      F->addFnAttr(A);
  for (Attribute::AttrKind Kind : Copied)
    if (Model->hasFnAttribute(Kind))
      F->addFnAttr(Model->getFnAttribute(Kind));
  bool NoUnwind = true;
  for (const Function *Step : {Scalar, Quick, Fast, Accurate})
    NoUnwind &= !Step || Step->doesNotThrow();
  if (NoUnwind)
    F->setDoesNotThrow();
  return F;
}

Function *Widener::declareCold(const Twine &Symbol, FunctionType *Ty) {
  SmallString<64> Name;
  Symbol.toVector(Name);
  Function *F = declare(Name, Ty, GlobalValue::InternalLinkage);
  if (F) {
    F->addFnAttr(Attribute::NoInline);
    F->addFnAttr(Attribute::Cold);
    udf::requireVectorWidth(*F, RegisterBits);
  }
  return F;
}

AllocaInst *Widener::entryAlloca(Function *F, Type *Ty, const Twine &Name,
                                 Align Alignment) const {
  BasicBlock &Entry = F->getEntryBlock();
  IRBuilder<> B(&Entry, Entry.begin());
  AllocaInst *A = B.CreateAlloca(Ty, nullptr, Name);
  A->setAlignment(Alignment);
  return A;
}

//===----------------------------------------------------------------------===//
// Loops over lanes
//===----------------------------------------------------------------------===//

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

/// The vectoriser takes the whole block at once: width times interleave count
/// is the trip count, so the vector loop runs exactly once and disappears. The
/// early unroller must leave the loop alone, or nothing would be left to
/// vectorise.
MDNode *Widener::loopMetadata(unsigned Lanes) const {
  unsigned Width = RegisterBits / (U.IsDouble ? 64 : 32);
  if (WidthOption)
    Width = PowerOf2Ceil(WidthOption);
  Width = std::min(Width, Lanes);
  SmallVector<Metadata *, 5> Hints{
      loopHint(Ctx, "llvm.loop.mustprogress"),
      loopHint(Ctx, "llvm.loop.unroll.disable"),
      loopHint(Ctx, "llvm.loop.vectorize.width", Width),
      loopHint(Ctx, "llvm.loop.interleave.count", Lanes / Width)};
  // Asks for a warning when a fast path cannot be vectorised. A UDF that is one
  // scalar function may hold branches and calls, so a warning there would say
  // nothing new.
  if (Fast)
    Hints.push_back(loopHint(Ctx, "llvm.loop.vectorize.enable", 1, true));
  return loopId(Ctx, Hints);
}

MDNode *Widener::plainLoopMetadata() const {
  return loopId(Ctx, {loopHint(Ctx, "llvm.loop.mustprogress"),
                      loopHint(Ctx, "llvm.loop.unroll.disable"),
                      loopHint(Ctx, "llvm.loop.vectorize.enable", 0, true)});
}

/// Runs \p Step, the UDF or one of its paths, on every lane of \p Args.
Widener::Block Widener::emitLanes(IRBuilder<> &B, Function *Step,
                                  ArrayRef<Value *> Args, unsigned Lanes,
                                  bool KeepFlags) {
  Function *F = B.GetInsertBlock()->getParent();
  Type *I64 = B.getInt64Ty();
  Type *BufferTy = ArrayType::get(ElemTy, Lanes);
  SmallVector<Value *, 2> In;
  for (Value *Arg : Args) {
    In.push_back(entryAlloca(F, BufferTy, "in", vectorAlign(Lanes)));
    B.CreateAlignedStore(Arg, In.back(), vectorAlign(Lanes));
  }
  Value *Out = entryAlloca(F, BufferTy, "out", vectorAlign(Lanes));
  Value *Flag = nullptr, *Flags = nullptr;
  if (Fast) {
    Flag = entryAlloca(F, B.getInt32Ty(), "flag", Align(4));
    if (KeepFlags)
      Flags = entryAlloca(F, ArrayType::get(B.getInt8Ty(), Lanes), "flags",
                          Align(Lanes));
  }

  BasicBlock *Before = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(Ctx, "lanes", F);
  BasicBlock *After = BasicBlock::Create(Ctx, "lanes.done", F);
  B.CreateBr(Loop);

  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(I64, 2, "lane");
  PHINode *Any = Fast ? B.CreatePHI(B.getInt1Ty(), 2, "any") : nullptr;
  SmallVector<Value *, 3> CallArgs;
  for (Value *Buffer : In)
    CallArgs.push_back(B.CreateAlignedLoad(
        ElemTy, B.CreateInBoundsGEP(ElemTy, Buffer, I), elementAlign(), "x"));
  if (Fast) {
    // A fast path that forgets to write its flag must not leave an old one.
    B.CreateStore(B.getInt32(0), Flag);
    CallArgs.push_back(Flag);
  }
  CallInst *Y = B.CreateCall(Step, CallArgs, "y");
  Y->setCallingConv(Step->getCallingConv());
  B.CreateAlignedStore(Y, B.CreateInBoundsGEP(ElemTy, Out, I), elementAlign());
  Value *AnyNext = nullptr;
  if (Fast) {
    Value *Hard = B.CreateIsNotNull(B.CreateLoad(B.getInt32Ty(), Flag), "hard");
    AnyNext = B.CreateOr(Any, Hard);
    if (Flags)
      B.CreateStore(B.CreateZExt(Hard, B.getInt8Ty()),
                    B.CreateInBoundsGEP(B.getInt8Ty(), Flags, I));
  }
  Value *Next = B.CreateNUWAdd(I, B.getInt64(1));
  I->addIncoming(B.getInt64(0), Before);
  I->addIncoming(Next, Loop);
  if (Fast) {
    Any->addIncoming(B.getFalse(), Before);
    Any->addIncoming(AnyNext, Loop);
  }
  BranchInst *Latch =
      B.CreateCondBr(B.CreateICmpEQ(Next, B.getInt64(Lanes)), After, Loop);
  Latch->setMetadata(LLVMContext::MD_loop, loopMetadata(Lanes));

  B.SetInsertPoint(After);
  Value *Result =
      B.CreateAlignedLoad(vectorType(Lanes), Out, vectorAlign(Lanes), "result");
  return {Result, AnyNext, Flags};
}

/// The body of a fix-up: runs the fast path (again, unless a quick one led
/// here), then the accurate path on the lanes that are hard and live. \p Live
/// is an i<lanes> mask, or null for all lanes.
Value *Widener::emitAccurateLanes(IRBuilder<> &B, ArrayRef<Value *> Args,
                                  unsigned Lanes, Value *Live) {
  Block First = emitLanes(B, Fast, Args, Lanes, /*KeepFlags=*/true);
  Function *F = B.GetInsertBlock()->getParent();
  Type *MaskTy = B.getIntNTy(Lanes);
  Value *FlagVec = B.CreateAlignedLoad(
      FixedVectorType::get(B.getInt8Ty(), Lanes), First.Flags, Align(Lanes));
  Value *Todo = B.CreateBitCast(B.CreateIsNotNull(FlagVec), MaskTy, "todo");
  if (Live)
    Todo = B.CreateAnd(Todo, Live);

  Type *BufferTy = ArrayType::get(ElemTy, Lanes);
  SmallVector<Value *, 2> In;
  for (Value *Arg : Args) {
    In.push_back(entryAlloca(F, BufferTy, "x.lanes", vectorAlign(Lanes)));
    B.CreateAlignedStore(Arg, In.back(), vectorAlign(Lanes));
  }
  Value *Out = entryAlloca(F, BufferTy, "y.lanes", vectorAlign(Lanes));
  B.CreateAlignedStore(First.Result, Out, vectorAlign(Lanes));

  BasicBlock *Before = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(Ctx, "hard.lanes", F);
  BasicBlock *After = BasicBlock::Create(Ctx, "hard.done", F);
  // With every hard lane dead there is nothing to do.
  B.CreateCondBr(B.CreateIsNotNull(Todo), Loop, After);
  B.SetInsertPoint(Loop);
  PHINode *Left = B.CreatePHI(MaskTy, 2, "left");
  Value *Lane = B.CreateZExtOrTrunc(
      B.CreateBinaryIntrinsic(Intrinsic::cttz, Left, B.getTrue()),
      B.getInt64Ty(), "lane");
  SmallVector<Value *, 2> CallArgs;
  for (Value *Buffer : In)
    CallArgs.push_back(
        B.CreateAlignedLoad(ElemTy, B.CreateInBoundsGEP(ElemTy, Buffer, Lane),
                            elementAlign(), "x"));
  CallInst *Y = B.CreateCall(Accurate, CallArgs, "y");
  Y->setCallingConv(Accurate->getCallingConv());
  B.CreateAlignedStore(Y, B.CreateInBoundsGEP(ElemTy, Out, Lane),
                       elementAlign());
  Value *Rest =
      B.CreateAnd(Left, B.CreateSub(Left, ConstantInt::get(MaskTy, 1)), "rest");
  Left->addIncoming(Todo, Before);
  Left->addIncoming(Rest, Loop);
  B.CreateCondBr(B.CreateIsNull(Rest), After, Loop)
      ->setMetadata(LLVMContext::MD_loop, plainLoopMetadata());
  B.SetInsertPoint(After);
  return B.CreateAlignedLoad(vectorType(Lanes), Out, vectorAlign(Lanes));
}

//===----------------------------------------------------------------------===//
// Forms
//===----------------------------------------------------------------------===//

void Widener::emitScalar(Function *F) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  SmallVector<Value *, 3> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);
  if (Scalar) {
    CallInst *Y = B.CreateCall(Scalar, Args);
    Y->setCallingConv(Scalar->getCallingConv());
    B.CreateRet(Y);
    return;
  }
  Value *Flag = B.CreateAlloca(B.getInt32Ty(), nullptr, "flag");
  B.CreateStore(B.getInt32(0), Flag);
  Args.push_back(Flag);
  CallInst *Y = B.CreateCall(Fast, Args, "y");
  Y->setCallingConv(Fast->getCallingConv());
  Value *Hard = B.CreateIsNotNull(B.CreateLoad(B.getInt32Ty(), Flag), "hard");
  BasicBlock *Slow = BasicBlock::Create(Ctx, "hard", F);
  BasicBlock *Done = BasicBlock::Create(Ctx, "done", F);
  B.CreateCondBr(Hard, Slow, Done, unlikely());
  B.SetInsertPoint(Slow);
  Args.pop_back();
  CallInst *Z = B.CreateCall(Accurate, Args, "z");
  Z->setCallingConv(Accurate->getCallingConv());
  Z->setTailCall();
  B.CreateRet(Z);
  B.SetInsertPoint(Done);
  B.CreateRet(Y);
}

Function *Widener::emitVectorFixup(const Twine &Symbol, unsigned Lanes) {
  Type *VecTy = vectorType(Lanes);
  Function *F = declareCold(
      Symbol,
      FunctionType::get(VecTy, SmallVector<Type *, 2>(U.Arity, VecTy), false));
  if (!F)
    return nullptr;
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  SmallVector<Value *, 2> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);
  B.CreateRet(emitAccurateLanes(B, Args, Lanes, nullptr));
  return F;
}

void Widener::emitVector(Function *F, unsigned Lanes) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  SmallVector<Value *, 2> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);
  Block First = emitLanes(B, firstStep(), Args, Lanes, /*KeepFlags=*/false);
  if (!First.Hard) {
    B.CreateRet(First.Result);
    return;
  }
  // The fix-up takes its vectors by value: a pointer would make the buffers
  // escape and keep them in memory on the hot path.
  Function *Fixup = emitVectorFixup(F->getName() + ".fixup", Lanes);
  BasicBlock *Slow = BasicBlock::Create(Ctx, "hard", F);
  BasicBlock *Done = BasicBlock::Create(Ctx, "done", F);
  B.CreateCondBr(First.Hard, Slow, Done, unlikely());
  B.SetInsertPoint(Slow);
  CallInst *Z = B.CreateCall(Fixup, Args);
  Z->setTailCall();
  B.CreateRet(Z);
  B.SetInsertPoint(Done);
  B.CreateRet(First.Result);
}

/// Dead lanes repeat the first element, which is live: a filler of the pass's
/// own choosing could be a hard case and send every tail to the fix-up.
Value *Widener::maskedLoad(IRBuilder<> &B, Value *From, Value *Mask,
                           unsigned Lanes) {
  Value *First = B.CreateAlignedLoad(ElemTy, From, elementAlign());
  return B.CreateMaskedLoad(vectorType(Lanes), From, elementAlign(), Mask,
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
Function *Widener::emitArrayFixup(const Twine &Symbol, unsigned Lanes) {
  SmallVector<Type *, 4> Params(U.Arity + 1, PointerType::getUnqual(Ctx));
  Params.push_back(Type::getInt64Ty(Ctx));
  Function *F = declareCold(
      Symbol, FunctionType::get(Type::getVoidTy(Ctx), Params, false));
  if (!F)
    return nullptr;
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  Value *Mask = laneMask(B, F->getArg(U.Arity + 1), Lanes);
  SmallVector<Value *, 2> Args;
  for (unsigned I = 0; I < U.Arity; ++I)
    Args.push_back(maskedLoad(B, F->getArg(I), Mask, Lanes));
  Value *Result = emitAccurateLanes(B, Args, Lanes,
                                    B.CreateBitCast(Mask, B.getIntNTy(Lanes)));
  B.CreateMaskedStore(Result, F->getArg(U.Arity), elementAlign(), Mask);
  B.CreateRetVoid();
  return F;
}

void Widener::emitArray(Function *F) {
  unsigned PerRegister = RegisterBits / (U.IsDouble ? 64 : 32);
  unsigned Lanes = 2 * PerRegister;
  if (BlockOption)
    Lanes = std::min<unsigned>(PowerOf2Ceil(BlockOption), 64);

  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  Value *N = F->getArg(0);
  Value *Out = F->getArg(U.Arity + 1);
  Function *Fixup =
      Fast ? emitArrayFixup(F->getName() + ".fixup", Lanes) : nullptr;

  // One block: load, run, repair, store. Returns with B behind the store.
  auto EmitBlock = [&](Value *Base, Value *Mask, Value *Count) {
    SmallVector<Value *, 4> Pointers;
    SmallVector<Value *, 2> Args;
    for (unsigned I = 0; I < U.Arity; ++I) {
      Value *P = B.CreateInBoundsGEP(ElemTy, F->getArg(1 + I), Base);
      Pointers.push_back(P);
      Args.push_back(Mask ? maskedLoad(B, P, Mask, Lanes)
                          : B.CreateAlignedLoad(vectorType(Lanes), P,
                                                elementAlign(), "block"));
    }
    Value *To = B.CreateInBoundsGEP(ElemTy, Out, Base);
    Pointers.push_back(To);
    Block First = emitLanes(B, firstStep(), Args, Lanes, /*KeepFlags=*/false);
    BasicBlock *Join = nullptr;
    if (First.Hard) {
      BasicBlock *Slow = BasicBlock::Create(Ctx, "hard", F);
      BasicBlock *Easy = BasicBlock::Create(Ctx, "easy", F);
      Join = BasicBlock::Create(Ctx, "stored", F);
      B.CreateCondBr(First.Hard, Slow, Easy, unlikely());
      B.SetInsertPoint(Slow);
      Pointers.push_back(Count);
      B.CreateCall(Fixup, Pointers);
      B.CreateBr(Join);
      B.SetInsertPoint(Easy);
    }
    if (Mask)
      B.CreateMaskedStore(First.Result, To, elementAlign(), Mask);
    else
      B.CreateAlignedStore(First.Result, To, elementAlign());
    if (Join) {
      B.CreateBr(Join);
      B.SetInsertPoint(Join);
    }
  };

  BasicBlock *Entry = B.GetInsertBlock();
  BasicBlock *Loop = BasicBlock::Create(Ctx, "blocks", F);
  BasicBlock *Rest = BasicBlock::Create(Ctx, "rest", F);
  BasicBlock *Tail = BasicBlock::Create(Ctx, "tail", F);
  BasicBlock *Exit = BasicBlock::Create(Ctx, "exit", F);
  Value *Full =
      B.CreateAnd(N, B.getInt64(-static_cast<int64_t>(Lanes)), "full");
  B.CreateCondBr(B.CreateICmpSGE(N, B.getInt64(Lanes)), Loop, Rest);

  B.SetInsertPoint(Loop);
  PHINode *I = B.CreatePHI(B.getInt64Ty(), 2, "i");
  EmitBlock(I, nullptr, B.getInt64(Lanes));
  Value *Next = B.CreateNSWAdd(I, B.getInt64(Lanes));
  I->addIncoming(B.getInt64(0), Entry);
  I->addIncoming(Next, B.GetInsertBlock());
  BasicBlock *LatchBlock = B.GetInsertBlock();
  B.CreateCondBr(B.CreateICmpSLT(Next, Full), Loop, Rest)
      ->setMetadata(LLVMContext::MD_loop, plainLoopMetadata());

  B.SetInsertPoint(Rest);
  PHINode *Base = B.CreatePHI(B.getInt64Ty(), 2, "base");
  Base->addIncoming(B.getInt64(0), Entry);
  Base->addIncoming(Full, LatchBlock);
  Value *Left = B.CreateSub(N, Base, "left");
  B.CreateCondBr(B.CreateICmpSGT(Left, B.getInt64(0)), Tail, Exit);

  B.SetInsertPoint(Tail);
  EmitBlock(Base, laneMask(B, Left, Lanes), Left);
  B.CreateBr(Exit);
  B.SetInsertPoint(Exit);
  B.CreateRetVoid();
}

static std::string originOf(const Udf &U, const Form &F) {
  return U.Name + ":" + F.Kind;
}

static bool isMade(const Module &M, const Udf &U, const Form &F) {
  const Function *Made = M.getFunction(F.Symbol);
  return Made && !Made->isDeclaration() &&
         Made->getFnAttribute(udf::FormMark).getValueAsString() ==
             originOf(U, F);
}

void Widener::emit() {
  pinInlining();
  RegisterBits = udf::widestRegisterBits(Fast ? *Fast : *Scalar, FAM);
  for (const Form &Want : U.Forms) {
    Function *F =
        declare(Want.Symbol, formType(Want), GlobalValue::ExternalLinkage);
    if (!F)
      continue;
    unsigned FormBits = Want.Lanes * (U.IsDouble ? 64 : 32);
    if (Want.Lanes > 1 && FormBits > RegisterBits) {
      udf::usageError(Ctx, "udf-widen: form '" + Want.Kind + "' of '" + U.Name +
                               "' needs registers of " + Twine(FormBits) +
                               " bits but the target has " +
                               Twine(RegisterBits) +
                               "; drop the form or compile for a CPU that has "
                               "them (-march=x86-64-v3: 256, -march=x86-64-v4: "
                               "512)");
      continue;
    }
    F->addFnAttr(udf::FormMark, originOf(U, Want));
    if (Want.Kind != "scalar")
      udf::requireVectorWidth(*F, RegisterBits);
    if (Want.Kind == "scalar")
      emitScalar(F);
    else if (Want.Kind == "array")
      emitArray(F);
    else
      emitVector(F, Want.Lanes);
    udf::reportLine(Ctx, json::Object{{"pass", DEBUG_TYPE},
                                      {"module", M.getName()},
                                      {"function", U.Name},
                                      {"form", Want.Kind},
                                      {"symbol", Want.Symbol},
                                      {"register_bits", RegisterBits}});
    LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": made " << Want.Symbol << '\n');
    ++NumForms;
  }
  ++NumFunctions;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

static bool runImpl(Module &M, FunctionAnalysisManager &FAM, StringRef Path) {
  SmallVector<Udf, 8> Udfs;
  if (!readManifest(M.getContext(), Path, Udfs))
    return false;
  // Both a pipeline that names the pass and clang's own may run it. Between the
  // two runs, the author's functions may have been inlined and dropped.
  erase_if(Udfs, [&](Udf &U) {
    erase_if(U.Forms, [&](const Form &F) { return isMade(M, U, F); });
    return U.Forms.empty();
  });
  // Every name is looked up before anything is written, so that one run
  // reports every mistake and a faulty manifest changes nothing.
  SmallVector<Widener, 8> Wideners;
  bool Ok = true;
  for (const Udf &U : Udfs) {
    Wideners.emplace_back(M, FAM, U);
    Ok &= Wideners.back().resolve();
  }
  if (!Ok)
    return false;
  for (Widener &W : Wideners)
    W.emit();
  return !Wideners.empty();
}

PreservedAnalyses udf::WidenPass::run(Module &M, ModuleAnalysisManager &MAM) {
  std::string Path =
      optionOrEnvironment(ManifestPath, "UDFTORCH_WIDEN_MANIFEST");
  if (Path.empty())
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  return runImpl(M, FAM, Path) ? PreservedAnalyses::none()
                               : PreservedAnalyses::all();
}
