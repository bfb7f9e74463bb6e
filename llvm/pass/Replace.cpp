//===- Replace.cpp - Functions rebound to UDFs ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-replace: links UDF bitcode and makes a module's functions use it.
//
// A target that the module defines keeps its declaration, linkage and
// attributes and gets a new body, a call of the UDF, so that every reference to
// it still holds. A target that is only declared has its uses redirected:
// calls, invokes and addresses alike. Calls of an intrinsic are rewritten one
// by one; vector types of the intrinsic that the map does not name are cut into
// pieces that it does name.
//
// The linked code is internal to the module and is marked, function by function
// and call by call, so that no later run of the pass rewrites what the UDFs
// themselves call, even after they are inlined. What it computes does not
// change with the flags of the module: it takes that module's CPU, but no
// product is fused with a sum.
//
// In clang's pipeline the pass runs three times. Scalar UDFs that come with
// vector forms (<symbol>_v<lanes>) stay calls between the first and the last
// run, and carry those forms as vector-function-abi variants: the vectorisers
// then turn a loop of scalar calls into calls of the vector form, which they
// could not do with the inlined body and its branch to the accurate path.
//
//===----------------------------------------------------------------------===//

#include "Replace.h"
#include "Compat.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/OptimizationRemarkEmitter.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Linker/Linker.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/ModRef.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"
#include <map>

#define DEBUG_TYPE "udf-replace"

using namespace llvm;

STATISTIC(NumBodies, "Number of function bodies replaced");
STATISTIC(NumCalls, "Number of calls redirected");
STATISTIC(NumAddresses, "Number of other uses redirected");
STATISTIC(NumIntrinsics, "Number of intrinsic calls replaced");
STATISTIC(NumInlined, "Number of UDF calls inlined after the vectorisers");

static cl::opt<std::string>
    MapPath("udf-replace-map", cl::value_desc("file"),
            cl::desc("JSON map from functions to the UDFs that replace them"));

static cl::opt<unsigned> InlineLimit(
    "udf-replace-inline-limit", cl::Hidden, cl::init(1000),
    cl::desc("Largest UDF, in IR instructions, inlined after the vectorisers"));

// Marks on functions that came with the bitcode, on those of them that a target
// was bound to, on calls that they make, and on targets with a new body.
static constexpr StringLiteral LinkedMark = "udf-linked";
static constexpr StringLiteral FormMark = "udf-form";
static constexpr StringLiteral KeepMark = "udf-keep";
static constexpr StringLiteral ReplacedMark = "udf-replaced";
static constexpr StringLiteral VariantsAttribute =
    "vector-function-abi-variant";
static constexpr StringLiteral FailedMetadata = "udf-replace.failed";

namespace {

struct ReplaceMap {
  std::string Path;
  std::string Bitcode;
  std::map<std::string, std::string> Targets; // sorted: one order of output
};

/// What was done for one target, for the report.
struct Tally {
  unsigned Bodies = 0, Calls = 0, Addresses = 0, Intrinsics = 0;
};

/// The replacements of one intrinsic on one element type, by lanes.
struct IntrinsicGroup {
  std::map<unsigned, std::pair<std::string, std::string>> ByLanes;
};

class Replacer {
public:
  Replacer(Module &M, FunctionAnalysisManager &FAM, const ReplaceMap &Map,
           udf::ReplacePass::Stage Stage, bool Optimizing)
      : M(M), Ctx(M.getContext()), FAM(FAM), Map(Map), Stage(Stage),
        Optimizing(Optimizing) {}

  bool run();
  bool failed() const { return Failed; }

private:
  using Stages = udf::ReplacePass::Stage;

  struct Binding {
    Function *Target;
    std::string Replacement;
    bool NewBody;
  };
  struct IntrinsicBinding {
    Function *Target; // declaration of the intrinsic on one type
    const IntrinsicGroup *Group;
    std::map<unsigned, std::string> Forms; // by lanes; those that can be used
  };

  void fail(const Twine &Message) {
    udf::usageError(Ctx, Message);
    Failed = true;
  }
  void findWork();
  void findFunction(const std::string &Name, const std::string &Replacement);
  void findIntrinsics();
  std::unique_ptr<Module> loadBitcode();
  bool check(const Module &Src);
  bool link(std::unique_ptr<Module> Src);
  void warnOfMissingFma(ArrayRef<Function *> Forms);
  void adopt(Function &F);
  Function *linked(StringRef Name) const;
  void attachVariants(CallBase &Call, const Function &Form) const;
  bool variantFits(const Function &Variant, const Function &Scalar) const;
  bool cpuLacks(const Function &Form) const;

  void replaceBody(Function &F, Function &Form);
  void redirect(Function &Target, Function &Form);
  void rewriteIntrinsicCalls(const IntrinsicBinding &B);
  Value *callForm(IRBuilder<> &B, Function &Form, ArrayRef<Value *> Args,
                  const CallInst &Like);
  void inlineForms();
  void remark(const CallBase &Call, StringRef Target, StringRef Form);
  void report() const;

  Module &M;
  LLVMContext &Ctx;
  FunctionAnalysisManager &FAM;
  const ReplaceMap &Map;
  const udf::ReplacePass::Stage Stage;
  const bool Optimizing;
  bool Failed = false, Changed = false;

  SmallVector<Binding, 8> Bindings;
  SmallVector<IntrinsicBinding, 8> IntrinsicBindings;
  std::map<std::pair<Intrinsic::ID, Type *>, IntrinsicGroup> Groups;
  SetVector<StringRef> Needed; // names in the bitcode, owned by Map or Groups
  // A function of the module that stands for the CPU it is compiled for; null
  // when the module holds nothing but data.
  const Function *Model = nullptr;
  unsigned RegisterBits = 128;
  bool FmaIsSlow = false;
  // Scalar form -> its vector forms, by name.
  std::map<std::string, SmallVector<std::pair<unsigned, std::string>, 2>>
      Variants;
  std::map<std::pair<std::string, std::string>, Tally> Tallies;
};

} // namespace

//===----------------------------------------------------------------------===//
// The map
//===----------------------------------------------------------------------===//

static bool readMap(LLVMContext &Ctx, StringRef Path, ReplaceMap &Map) {
  std::optional<json::Value> Root =
      udf::readJson(Ctx, "udf-replace: map", Path);
  if (!Root)
    return false;
  std::string Where = ("udf-replace: map '" + Path + "'").str();
  const json::Object *Top = Root->getAsObject();
  std::optional<StringRef> Bitcode =
      Top ? Top->getString("bitcode") : std::nullopt;
  const json::Object *Targets = Top ? Top->getObject("targets") : nullptr;
  if (!Bitcode || Bitcode->empty() || !Targets) {
    udf::usageError(Ctx, Where + " must be an object with a string 'bitcode' "
                                 "and an object 'targets'");
    return false;
  }
  Map.Path = Path.str();
  // A relative path starts at the map, so that a build can be moved whole.
  SmallString<128> File(*Bitcode);
  if (sys::path::is_relative(File)) {
    File = sys::path::parent_path(Path);
    sys::path::append(File, *Bitcode);
  }
  Map.Bitcode = File.str().str();
  if (!sys::fs::exists(Map.Bitcode)) {
    udf::usageError(Ctx, Where + ": the bitcode '" + Map.Bitcode +
                             "' does not exist; build the UDF library first "
                             "or correct 'bitcode' (relative paths start at "
                             "the map's folder)");
    return false;
  }
  bool Ok = true;
  for (const auto &[Key, Value] : *Targets) {
    StringRef Target = Key;
    std::optional<StringRef> Replacement = Value.getAsString();
    if (Target.empty() || !Replacement || Replacement->empty()) {
      udf::usageError(Ctx, Where + ": target '" + Target +
                               "' must name its replacement as a non-empty "
                               "string");
      Ok = false;
      continue;
    }
    Map.Targets[Target.str()] = Replacement->str();
  }
  return Ok;
}

//===----------------------------------------------------------------------===//
// Finding the work
//===----------------------------------------------------------------------===//

/// Whether an instruction belongs to the UDFs themselves.
static bool isUdfCode(const Instruction &I) {
  if (I.getFunction()->hasFnAttribute(LinkedMark))
    return true;
  const auto *Call = dyn_cast<CallBase>(&I);
  return Call && Call->getAttributes().hasFnAttr(KeepMark);
}

static bool isForeignUse(const Use &U) {
  const auto *I = dyn_cast<Instruction>(U.getUser());
  return !I || !isUdfCode(*I);
}

/// The element type and lane count (1 for a scalar) of an intrinsic's result,
/// or nothing for a type that no UDF has.
static std::optional<std::pair<Type *, unsigned>> shape(Type *T) {
  unsigned Lanes = 1;
  if (auto *Vector = dyn_cast<FixedVectorType>(T)) {
    Lanes = Vector->getNumElements();
    T = Vector->getElementType();
  }
  if (!T->isFloatTy() && !T->isDoubleTy())
    return std::nullopt;
  return std::pair{T, Lanes};
}

/// The type that an intrinsic's name ends in: ".f32", ".v16f64".
static std::optional<std::pair<Type *, unsigned>> suffixShape(LLVMContext &Ctx,
                                                              StringRef Name) {
  StringRef Suffix = Name.rsplit('.').second;
  unsigned Lanes = 1;
  if (Suffix.consume_front("v") && Suffix.consumeInteger(10, Lanes))
    return std::nullopt;
  if (Suffix == "f32")
    return std::pair{Type::getFloatTy(Ctx), Lanes};
  if (Suffix == "f64")
    return std::pair{Type::getDoubleTy(Ctx), Lanes};
  return std::nullopt;
}

void Replacer::findFunction(const std::string &Name,
                            const std::string &Replacement) {
  GlobalValue *Value = M.getNamedValue(Name);
  if (!Value)
    return;
  auto *F = dyn_cast<Function>(Value);
  if (!F) {
    fail("udf-replace: target '" + Name + "' is " +
         (isa<GlobalVariable>(Value) ? "a variable" : "an alias") +
         " in module '" + M.getName() +
         "', and only functions can be replaced; drop it from the map or name "
         "the function behind it");
    return;
  }
  if (F->hasFnAttribute(LinkedMark) || F->hasFnAttribute(ReplacedMark))
    return;
  // The body of an available_externally function is a copy for the inliner;
  // the module holds no more than a declaration of it.
  bool NewBody = !F->isDeclaration() && !F->hasAvailableExternallyLinkage();
  if (!NewBody && none_of(F->uses(), isForeignUse))
    return;
  Bindings.push_back({F, Replacement, NewBody});
  Needed.insert(Map.Targets.find(Name)->second);
}

void Replacer::findIntrinsics() {
  for (Function &F : M) {
    if (!F.isIntrinsic() || none_of(F.uses(), isForeignUse))
      continue;
    auto Shape = shape(F.getReturnType());
    if (!Shape)
      continue;
    auto Found = Groups.find({F.getIntrinsicID(), Shape->first});
    if (Found == Groups.end())
      continue;
    // Only what works lane by lane on the result's type can be cut to pieces.
    if (!all_of(F.args(), [&](const Argument &A) {
          return A.getType() == F.getReturnType();
        })) {
      auto Exact = Found->second.ByLanes.find(Shape->second);
      if (Exact != Found->second.ByLanes.end())
        fail("udf-replace: intrinsic '" + F.getName() + "' has the type " +
             udf::typeName(F.getFunctionType()) + ", which '" +
             Exact->second.second + "' cannot have; drop it from the map");
      continue;
    }
    IntrinsicBindings.push_back({&F, &Found->second, {}});
  }
}

/// Whether the CPU has no fused multiply-add, so that one is a library call.
static bool fmaIsSlow(const TargetTransformInfo &TTI, LLVMContext &Ctx) {
  Type *T = Type::getDoubleTy(Ctx);
  InstructionCost Multiply = TTI.getArithmeticInstrCost(Instruction::FMul, T);
  InstructionCost Fused = TTI.getIntrinsicInstrCost(
      IntrinsicCostAttributes(Intrinsic::fma, T, {T, T, T}),
      TargetTransformInfo::TCK_RecipThroughput);
  return Fused > 4 * Multiply;
}

void Replacer::findWork() {
  for (const auto &[Name, Replacement] : Map.Targets) {
    if (!StringRef(Name).starts_with("llvm.")) {
      findFunction(Name, Replacement);
      continue;
    }
    Intrinsic::ID ID = udf::compat::lookupIntrinsic(Name);
    auto Shape = suffixShape(Ctx, Name);
    if (ID == Intrinsic::not_intrinsic || !Shape) {
      fail("udf-replace: target '" + Name +
           "' is no LLVM intrinsic on float or double; write it as in IR, for "
           "instance llvm.exp.f32 or llvm.exp.v16f32");
      continue;
    }
    Groups[{ID, Shape->first}].ByLanes[Shape->second] = {Name, Replacement};
  }
  findIntrinsics();

  for (const Binding &B : Bindings) {
    if (B.NewBody)
      Model = B.Target;
    for (const Use &U : B.Target->uses())
      if (const auto *I = dyn_cast<Instruction>(U.getUser()); I && !Model)
        Model = I->getFunction();
  }
  for (const IntrinsicBinding &B : IntrinsicBindings)
    for (const Use &U : B.Target->uses())
      if (!Model)
        Model = cast<Instruction>(U.getUser())->getFunction();
  for (const Function &F : M)
    if (!Model && !F.isDeclaration())
      Model = &F;
  if (Bindings.empty() && IntrinsicBindings.empty())
    return;
  if (Model) {
    RegisterBits = udf::widestRegisterBits(*Model, FAM);
    FmaIsSlow = fmaIsSlow(
        FAM.getResult<TargetIRAnalysis>(const_cast<Function &>(*Model)), Ctx);
  }

  // A form wider than the CPU's registers has another ABI there.
  for (IntrinsicBinding &B : IntrinsicBindings) {
    Type *Element = shape(B.Target->getReturnType())->first;
    for (const auto &[Lanes, Names] : B.Group->ByLanes)
      if (Lanes == 1 ||
          Lanes * Element->getPrimitiveSizeInBits() <= RegisterBits) {
        B.Forms[Lanes] = Names.second;
        Needed.insert(Names.second);
      }
  }
  erase_if(IntrinsicBindings,
           [](const IntrinsicBinding &B) { return B.Forms.empty(); });
}

//===----------------------------------------------------------------------===//
// Linking
//===----------------------------------------------------------------------===//

std::unique_ptr<Module> Replacer::loadBitcode() {
  SMDiagnostic Error;
  std::unique_ptr<Module> Src = parseIRFile(Map.Bitcode, Error, Ctx);
  if (!Src) {
    fail("udf-replace: bitcode '" + Map.Bitcode +
         "' cannot be read: " + Error.getMessage() +
         "; it must be LLVM IR of a version that this compiler reads");
    return nullptr;
  }
  Triple From(Src->getTargetTriple()), To(M.getTargetTriple());
  if (From.getArch() != To.getArch() && From.getArch() != Triple::UnknownArch &&
      To.getArch() != Triple::UnknownArch) {
    fail("udf-replace: bitcode '" + Map.Bitcode + "' is for " + From.str() +
         " but module '" + M.getName() + "' is for " + To.str() +
         "; build the UDF library for that target");
    return nullptr;
  }
  // The linker warns about triples that differ in the vendor only.
  Src->setTargetTriple(M.getTargetTriple());
  Src->setDataLayout(M.getDataLayout());
  // Whatever the library's own build kept alive need not live in this module.
  for (const char *Name : {"llvm.used", "llvm.compiler.used"})
    if (GlobalVariable *List = Src->getNamedGlobal(Name))
      List->eraseFromParent();
  return Src;
}

/// Whether the optimiser may turn a call into one of another math function or
/// of another width, which then bears no mark.
static bool mayChangeItsName(const CallBase &Call) {
  const Function *Callee = Call.getCalledFunction();
  if (!Callee)
    return true;
  switch (Callee->getIntrinsicID()) {
  case Intrinsic::not_intrinsic:
    return Callee->isDeclaration();
  case Intrinsic::arithmetic_fence:
  case Intrinsic::fma:
  case Intrinsic::fmuladd:
  case Intrinsic::fabs:
  case Intrinsic::copysign:
  case Intrinsic::sqrt:
  case Intrinsic::floor:
  case Intrinsic::ceil:
  case Intrinsic::trunc:
  case Intrinsic::rint:
  case Intrinsic::nearbyint:
  case Intrinsic::round:
  case Intrinsic::roundeven:
  case Intrinsic::minnum:
  case Intrinsic::maxnum:
  case Intrinsic::minimum:
  case Intrinsic::maximum:
    return false;
  default:
    // The target's own intrinsics are instructions, not functions of math.
    return !Callee->getName().starts_with("llvm.x86.") &&
           Callee->doesNotAccessMemory() &&
           Callee->getReturnType()->isFPOrFPVectorTy();
  }
}

/// Whether a product is added to something, or something is taken from it.
static bool isSummed(const Instruction &Product) {
  return any_of(Product.users(), [](const User *U) {
    const auto *I = dyn_cast<Instruction>(U);
    return I && (I->getOpcode() == Instruction::FAdd ||
                 I->getOpcode() == Instruction::FSub ||
                 (I->getOpcode() == Instruction::FNeg && isSummed(*I)));
  });
}

/// Keeps the code generator from fusing a product with a sum. Whether it may
/// (-ffp-contract=fast) is a setting of the whole module that UDF code joins,
/// and no attribute takes a function out of it.
static void forbidContraction(Function &F, const Triple &Target) {
  SmallVector<Instruction *, 16> Products;
  for (Instruction &I : instructions(F))
    if (I.getOpcode() == Instruction::FMul && isSummed(I))
      Products.push_back(&I);
  for (Instruction *Product : Products) {
    IRBuilder<> B(Product->getNextNode());
    Type *T = Product->getType();
    if (Target.isNVPTX() && udf::compat::NvvmProductsStayApart &&
        (T->isFloatTy() || T->isDoubleTy())) {
      // The assembler behind LLVM fuses too, unless the rounding is spelled.
      Value *Rounded = B.CreateIntrinsic(
          T->isFloatTy() ? Intrinsic::nvvm_mul_rn_f : Intrinsic::nvvm_mul_rn_d,
          {}, {Product->getOperand(0), Product->getOperand(1)});
      Product->replaceAllUsesWith(Rounded);
      Rounded->takeName(Product);
      Product->eraseFromParent();
      continue;
    }
    CallInst *Fence =
        B.CreateIntrinsic(Intrinsic::arithmetic_fence, {T}, {Product});
    Product->replaceUsesWithIf(Fence,
                               [&](Use &U) { return U.getUser() != Fence; });
  }
}

/// Makes a function of the bitcode ready to join the module.
void Replacer::adopt(Function &F) {
  F.addFnAttr(LinkedMark);
  if (Model)
    udf::copyTarget(*Model, F);
  if (!FmaIsSlow)
    forbidContraction(F, Triple(M.getTargetTriple()));
  bool Pinned = false;
  for (Instruction &I : instructions(F))
    if (auto *Call = dyn_cast<CallBase>(&I)) {
      Call->addFnAttr(Attribute::get(Ctx, KeepMark));
      Pinned |= mayChangeItsName(*Call);
    }
  // The function's own mark is the only one that such calls cannot lose, so
  // they stay in it until the last run of the pass is over.
  if (Pinned) {
    F.removeFnAttr(Attribute::AlwaysInline);
    F.addFnAttr(Attribute::NoInline);
  }
}

Function *Replacer::linked(StringRef Name) const {
  Function *F = M.getFunction(Name);
  return F && !F->isDeclaration() && F->hasFnAttribute(LinkedMark) ? F
                                                                   : nullptr;
}

/// Whether a form permutes registers (udf-tables) in a way that the CPU of the
/// module cannot. Everything else in a form can be compiled for any CPU.
bool Replacer::cpuLacks(const Function &Form) const {
  for (const Instruction &I : instructions(Form)) {
    const auto *Call = dyn_cast<IntrinsicInst>(&I);
    if (!Model || !Call)
      continue;
    StringRef Name = Call->getCalledFunction()->getName();
    for (auto [Prefix, Features] :
         {std::pair{"llvm.x86.avx512.", "+avx512f"}, {"llvm.x86.avx", "+avx2"}})
      if (Name.starts_with(Prefix) &&
          !udf::hasFeatures(*const_cast<Function *>(Model), Features, FAM))
        return true;
  }
  return false;
}

bool Replacer::variantFits(const Function &Variant,
                           const Function &Scalar) const {
  auto *VecTy = dyn_cast<FixedVectorType>(Variant.getReturnType());
  return VecTy && VecTy->getElementType() == Scalar.getReturnType() &&
         VecTy->getPrimitiveSizeInBits() <= RegisterBits &&
         !cpuLacks(Variant) && Variant.arg_size() == Scalar.arg_size() &&
         all_of(Variant.args(),
                [&](const Argument &A) { return A.getType() == VecTy; });
}

/// Whether the bitcode has what the map promises, in the types of the targets.
bool Replacer::check(const Module &Src) {
  for (StringRef Name : Needed) {
    const Function *F = Src.getFunction(Name);
    if (F && !F->isDeclaration())
      continue;
    std::string Has;
    for (const Function &G : Src)
      if (!G.isDeclaration() && G.getName().starts_with("__udf_") &&
          !G.hasLocalLinkage())
        Has += (Has.empty() ? "" : ", ") + G.getName().str();
    fail("udf-replace: bitcode '" + Map.Bitcode + "' defines no function '" +
         Name + "', which the map names; it defines " +
         (Has.empty() ? "no form of a UDF" : Has));
  }
  if (Failed)
    return false;

  auto Mismatch = [&](const Twine &Target, const FunctionType *Want,
                      const Function &Form) {
    fail("udf-replace: '" + Target + "' has the type " + udf::typeName(Want) +
         " but its replacement '" + Form.getName() + "' has " +
         udf::typeName(Form.getFunctionType()) +
         "; bind it to a form of the same type");
  };
  auto CheckCpu = [&](const Function &Form) {
    if (cpuLacks(Form))
      fail("udf-replace: '" + Form.getName() + "' of bitcode '" + Map.Bitcode +
           "' permutes registers in a way that the CPU of module '" +
           M.getName() + "' lacks; use the bitcode of a lower CPU level or " +
           "compile for a newer CPU (-march=x86-64-v3, -march=x86-64-v4)");
  };
  for (const Binding &B : Bindings) {
    const Function &Form = *Src.getFunction(B.Replacement);
    CheckCpu(Form);
    if (B.Target->getFunctionType() != Form.getFunctionType())
      Mismatch(B.Target->getName(), B.Target->getFunctionType(), Form);
    else if (B.Target->getCallingConv() != Form.getCallingConv())
      fail("udf-replace: '" + B.Target->getName() + "' and its replacement '" +
           Form.getName() + "' have different calling conventions; bind it " +
           "to a form of the same ABI");
  }
  for (const IntrinsicBinding &B : IntrinsicBindings) {
    auto Shape = *shape(B.Target->getReturnType());
    for (const auto &[Lanes, Name] : B.Forms) {
      const Function &Form = *Src.getFunction(Name);
      CheckCpu(Form);
      Type *T =
          Lanes == 1 ? Shape.first : FixedVectorType::get(Shape.first, Lanes);
      FunctionType *Want = FunctionType::get(
          T, SmallVector<Type *, 3>(B.Target->arg_size(), T), false);
      if (Form.getFunctionType() != Want)
        Mismatch(B.Group->ByLanes.find(Lanes)->second.first, Want, Form);
    }
  }
  return !Failed;
}

/// Brings the needed forms, and the vector forms beside them, into the module.
bool Replacer::link(std::unique_ptr<Module> Src) {
  SetVector<StringRef> Wanted(Needed.begin(), Needed.end());
  SmallVector<std::string, 8> VariantNames;
  if (Stage != Stages::Whole && Optimizing)
    for (StringRef Name : Needed) {
      const Function &Scalar = *Src->getFunction(Name);
      if (!Scalar.getReturnType()->isFloatingPointTy())
        continue;
      for (unsigned Lanes = 2; Lanes <= 64; Lanes *= 2) {
        std::string Variant = (Name + "_v" + Twine(Lanes)).str();
        const Function *V = Src->getFunction(Variant);
        if (V && !V->isDeclaration() && variantFits(*V, Scalar)) {
          Variants[Name.str()].push_back({Lanes, Variant});
          VariantNames.push_back(Variant);
        }
      }
    }
  for (StringRef Name : VariantNames)
    Wanted.insert(Name);

  // Only what is asked for keeps its name's claim on the module.
  for (GlobalValue &G : Src->global_values())
    if (!G.isDeclaration() && !Wanted.contains(G.getName())) {
      G.setLinkage(GlobalValue::InternalLinkage);
      G.setVisibility(GlobalValue::DefaultVisibility);
      if (auto *Object = dyn_cast<GlobalObject>(&G))
        Object->setComdat(nullptr);
    }
  for (Function &F : *Src)
    if (!F.isDeclaration())
      adopt(F);

  SmallVector<Function *, 8> Forms;
  SmallVector<std::string, 8> ToLink;
  for (StringRef Name : Wanted) {
    Function &In = *Src->getFunction(Name);
    Function *Old = M.getFunction(Name);
    if (Old && !Old->isDeclaration()) {
      // An earlier run of the pass may have left it; between the runs the
      // optimiser may have changed an internal function's signature.
      if (Old->hasFnAttribute(LinkedMark)) {
        if (Old->getFunctionType() == In.getFunctionType() &&
            Old->getCallingConv() == In.getCallingConv())
          continue;
        Old->setName(Name + ".old");
      } else {
        fail("udf-replace: module '" + M.getName() + "' defines '" + Name +
             "' itself; rename that function, or leave this module out of the "
             "replacement");
        return false;
      }
    }
    M.getOrInsertFunction(Name, In.getFunctionType());
    ToLink.push_back(Name.str());
  }
  if (!ToLink.empty()) {
    if (Linker::linkModules(M, std::move(Src), Linker::LinkOnlyNeeded)) {
      fail("udf-replace: linking '" + Map.Bitcode + "' into module '" +
           M.getName() + "' failed");
      return false;
    }
    for (const std::string &Name : ToLink) {
      Function *F = M.getFunction(Name);
      F->setComdat(nullptr);
      F->setLinkage(GlobalValue::InternalLinkage);
      F->setVisibility(GlobalValue::DefaultVisibility);
      F->setDSOLocal(true);
      F->addFnAttr(FormMark);
      Forms.push_back(F);
    }
    Changed = true;
  }

  SmallVector<GlobalValue *, 8> Alive;
  for (Function *F : Forms) {
    if (!Optimizing || F->getReturnType()->isVoidTy())
      continue;
    if (Variants.count(F->getName().str()) && Stage != Stages::Late)
      F->addFnAttr(Attribute::NoInline);
    else if (!F->hasFnAttribute(Attribute::NoInline))
      F->addFnAttr(Attribute::AlwaysInline);
  }
  if (Stage != Stages::Late)
    for (const std::string &Name : VariantNames)
      if (Function *F = linked(Name))
        Alive.push_back(F);
  if (!Alive.empty())
    appendToCompilerUsed(M, Alive);

  warnOfMissingFma(Forms);
  return true;
}

/// Fused multiply-adds of the bitcode become library calls on a CPU that has
/// none.
void Replacer::warnOfMissingFma(ArrayRef<Function *> Forms) {
  auto IsFma = [](const Instruction &I) {
    const auto *Call = dyn_cast<IntrinsicInst>(&I);
    return Call && Call->getIntrinsicID() == Intrinsic::fma;
  };
  for (Function *F : Forms)
    if (FmaIsSlow && any_of(instructions(*F), IsFma))
      udf::usageWarning(
          Ctx, "udf-replace: '" + F->getName() +
                   "' uses fused multiply-adds, which the CPU of module '" +
                   M.getName() +
                   "' lacks, so each becomes a call of fma; use the bitcode of "
                   "a lower CPU level or compile for a newer CPU "
                   "(-march=x86-64-v3)");
}

//===----------------------------------------------------------------------===//
// Rewriting
//===----------------------------------------------------------------------===//

void Replacer::remark(const CallBase &Call, StringRef Target, StringRef Form) {
  OptimizationRemarkEmitter ORE(Call.getFunction());
  ORE.emit([&] {
    return OptimizationRemark(DEBUG_TYPE, "Replaced", &Call)
           << "call of " << ore::NV("Target", Target) << " now calls "
           << ore::NV("Replacement", Form);
  });
}

void Replacer::attachVariants(CallBase &Call, const Function &Form) const {
  // Mappings of the function that was called before must not outlive it.
  udf::compat::removeFnAttribute(Call, VariantsAttribute);
  if (Stage == Stages::Late || !isa<CallInst>(Call))
    return;
  auto Found = Variants.find(Form.getName().str());
  if (Found == Variants.end())
    return;
  std::string Names;
  for (const auto &[Lanes, Variant] : Found->second) {
    if (!linked(Variant))
      continue;
    // The vector function ABI's name of a mapping, with LLVM's own letter for
    // the instruction set: the lanes alone decide.
    Names += (Names.empty() ? "" : ",") +
             ("_ZGV_LLVM_N" + Twine(Lanes) + std::string(Form.arg_size(), 'v') +
              "_" + Form.getName() + "(" + Variant + ")")
                 .str();
  }
  if (!Names.empty())
    Call.addFnAttr(Attribute::get(Ctx, VariantsAttribute, Names));
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

void Replacer::replaceBody(Function &F, Function &Form) {
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

  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", &F));
  if (DISubprogram *Where = F.getSubprogram())
    B.SetCurrentDebugLocation(
        DILocation::get(Ctx, Where->getScopeLine(), 0, Where));
  SmallVector<Value *, 5> Args;
  for (Argument &A : F.args())
    Args.push_back(&A);
  CallInst *Call = B.CreateCall(&Form, Args);
  Call->setCallingConv(Form.getCallingConv());
  Call->setTailCall();
  attachVariants(*Call, Form);
  if (Form.getReturnType()->isVoidTy())
    B.CreateRetVoid();
  else
    B.CreateRet(Call);
  weakenAttributes(F, Form);
  F.addFnAttr(ReplacedMark, Form.getName());
  FAM.invalidate(F, PreservedAnalyses::none());
  remark(*Call, F.getName(), Form.getName());
  ++Tallies[{F.getName().str(), Form.getName().str()}].Bodies;
  ++NumBodies;
  Changed = true;
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

void Replacer::redirect(Function &Target, Function &Form) {
  Tally &T = Tallies[{Target.getName().str(), Form.getName().str()}];
  SmallVector<CallBase *, 16> Calls;
  for (Use &U : Target.uses()) {
    auto *Call = dyn_cast<CallBase>(U.getUser());
    if (Call && Call->isCallee(&U) && !isUdfCode(*Call)) {
      if (Call->getFunctionType() == Form.getFunctionType())
        Calls.push_back(Call);
      else
        fail("udf-replace: a call of '" + Target.getName() + "' in '" +
             Call->getFunction()->getName() + "' has the type " +
             udf::typeName(Call->getFunctionType()) + " but its replacement '" +
             Form.getName() + "' has " + udf::typeName(Form.getFunctionType()) +
             "; declare the function with its prototype");
    }
  }
  if (Failed)
    return;
  for (CallBase *Call : Calls) {
    const TargetTransformInfo &TTI =
        FAM.getResult<TargetIRAnalysis>(*Call->getFunction());
    SmallVector<Type *, 5> Types{Form.getReturnType()};
    append_range(Types, Form.getFunctionType()->params());
    if (!passAlike(*Call->getFunction(), Form, Types) &&
        !TTI.areTypesABICompatible(Call->getFunction(), &Form, Types)) {
      fail("udf-replace: '" + Call->getFunction()->getName() +
           "' is compiled for another CPU than the rest of module '" +
           M.getName() + "' and passes the vectors of '" + Target.getName() +
           "' in other registers than '" + Form.getName() +
           "' takes them; compile it in a module of its own");
      continue;
    }
    Call->setCalledOperand(&Form);
    Changed = true;
    attachVariants(*Call, Form);
    remark(*Call, Target.getName(), Form.getName());
    ++T.Calls;
    ++NumCalls;
  }
  Target.replaceUsesWithIf(&Form, [&](Use &U) {
    if (!isForeignUse(U))
      return false;
    ++T.Addresses;
    ++NumAddresses;
    return Changed = true;
  });
}

Value *Replacer::callForm(IRBuilder<> &B, Function &Form,
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
  attachVariants(*Call, Form);
  return Call;
}

void Replacer::rewriteIntrinsicCalls(const IntrinsicBinding &Binding) {
  Function &Target = *Binding.Target;
  auto Shape = *shape(Target.getReturnType());
  std::map<unsigned, Function *> Forms;
  for (const auto &[Lanes, Name] : Binding.Forms)
    Forms[Lanes] = M.getFunction(Name);

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
      Result = callForm(B, *Exact->second, Args, *Call);
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
        Value *Y = callForm(B, *Form, Parts, *Call);
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
    ++Tallies[{Target.getName().str(), Used.str()}].Intrinsics;
    ++NumIntrinsics;
    Result->takeName(Call);
    Call->replaceAllUsesWith(Result);
    Call->eraseFromParent();
    Changed = true;
  }
}

//===----------------------------------------------------------------------===//
// After the vectorisers
//===----------------------------------------------------------------------===//

/// The vector form's constants can leave the loop, and its caller's values stay
/// in registers, only when it is inlined.
void Replacer::inlineForms() {
  SetVector<Function *> Forms, Callers;
  for (Function &F : M)
    if (F.hasFnAttribute(FormMark) && !F.isDeclaration())
      Forms.insert(&F);
  if (Forms.empty())
    return;
  removeFromUsedLists(M, [&](Constant *C) {
    auto *F = dyn_cast<Function>(C->stripPointerCasts());
    return F && Forms.contains(F);
  });
  Changed = true;
  for (Function *Form : Forms) {
    if (!Optimizing || Form->getReturnType()->isVoidTy() ||
        Form->getInstructionCount() > InlineLimit)
      continue;
    Form->removeFnAttr(Attribute::NoInline); // set by the first run
    SmallVector<CallBase *, 16> Calls;
    for (User *U : Form->users())
      if (auto *Call = dyn_cast<CallBase>(U);
          Call && Call->getCalledFunction() == Form) {
        const Function *Caller = Call->getFunction();
        if (!Caller->hasFnAttribute(LinkedMark) && !Caller->hasOptNone() &&
            !Caller->hasMinSize() && !Call->isNoInline() &&
            FAM.getResult<TargetIRAnalysis>(*Call->getFunction())
                .areInlineCompatible(Caller, Form))
          Calls.push_back(Call);
      }
    for (CallBase *Call : Calls) {
      Function *Caller = Call->getFunction();
      InlineFunctionInfo Info;
      if (InlineFunction(*Call, Info, /*MergeAttributes=*/true).isSuccess()) {
        Callers.insert(Caller);
        ++NumInlined;
      }
    }
  }
  for (Function *Form : Forms)
    if (Form->use_empty())
      Form->eraseFromParent();
  for (Function *Caller : Callers) {
    FAM.invalidate(*Caller, PreservedAnalyses::none());
    FunctionPassManager Cleanup;
    Cleanup.addPass(EarlyCSEPass(/*UseMemorySSA=*/true));
    Cleanup.addPass(InstCombinePass());
    Cleanup.addPass(createFunctionToLoopPassAdaptor(LICMPass(LICMOptions()),
                                                    /*UseMemorySSA=*/true));
    Cleanup.addPass(SimplifyCFGPass());
    Cleanup.run(*Caller, FAM);
  }
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

void Replacer::report() const {
  static constexpr StringLiteral Names[] = {"whole", "early", "middle", "late"};
  for (const auto &[Key, T] : Tallies)
    udf::reportLine(Ctx, json::Object{{"pass", DEBUG_TYPE},
                                      {"module", M.getName()},
                                      {"stage", Names[static_cast<int>(Stage)]},
                                      {"target", Key.first},
                                      {"replacement", Key.second},
                                      {"bodies", T.Bodies},
                                      {"calls", T.Calls},
                                      {"addresses", T.Addresses},
                                      {"intrinsics", T.Intrinsics}});
}

bool Replacer::run() {
  findWork();
  if (Failed)
    return false;
  if (!Bindings.empty() || !IntrinsicBindings.empty()) {
    std::unique_ptr<Module> Src = loadBitcode();
    if (!Src || !check(*Src) || !link(std::move(Src)))
      return Changed;
    for (const Binding &B : Bindings) {
      Function &Form = *M.getFunction(B.Replacement);
      if (B.NewBody)
        replaceBody(*B.Target, Form);
      else
        redirect(*B.Target, Form);
    }
    for (const IntrinsicBinding &B : IntrinsicBindings)
      rewriteIntrinsicCalls(B);
    report();
  }
  if (Stage == Stages::Late && !Failed)
    inlineForms();
  return Changed;
}

static bool runImpl(Module &M, FunctionAnalysisManager &FAM, StringRef Path,
                    udf::ReplacePass::Stage Stage, bool Optimizing) {
  // One mistake is told once, not by every run of the pass.
  if (M.getNamedMetadata(FailedMetadata))
    return false;
  ReplaceMap Map;
  bool Ok = readMap(M.getContext(), Path, Map), Changed = false;
  if (Ok) {
    Replacer R(M, FAM, Map, Stage, Optimizing);
    Changed = R.run();
    Ok = !R.failed();
  }
  if (!Ok)
    M.getOrInsertNamedMetadata(FailedMetadata);
  return Changed || !Ok;
}

PreservedAnalyses udf::ReplacePass::run(Module &M, ModuleAnalysisManager &MAM) {
  std::string Path = optionOrEnvironment(MapPath, "UDFTORCH_REPLACE_MAP");
  if (Path.empty())
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  return runImpl(M, FAM, Path, S, Optimizing) ? PreservedAnalyses::none()
                                              : PreservedAnalyses::all();
}
