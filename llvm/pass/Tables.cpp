//===- Tables.cpp - Small tables held in vector registers -----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-tables: turns look-ups in small tables into register permutations.
//
// The loop vectoriser turns `table[i % N]` into a gather or one load per lane.
// A table of floats that fits into two registers is better kept in them: one
// permutation then reads all lanes. LLVM has no portable operation for that, so
// the look-up becomes a call whose vector variants hold the target's
// permutations. A call that the vectoriser leaves alone is inlined as the
// original load.
//
// Paths in double keep their tables as floats, of which twice as many fit into
// a register; a sum of two makes an entry of 48 bits. Where the target permutes
// doubles, an entry that is extended, or such a sum, is looked up as a double.
//
//===----------------------------------------------------------------------===//

#include "Tables.h"
#include "Preserved.h"
#include "Target.h"
#include "Widen.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/ConstantFolding.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PatternMatch.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/Local.h"
#include <optional>

#define DEBUG_TYPE "udf-tables"

using namespace llvm;
using namespace llvm::PatternMatch;

STATISTIC(NumLookups, "Number of table look-ups turned into calls");
STATISTIC(NumInlined, "Number of such calls inlined");

namespace {

/// What the target can do with one register of floats or doubles.
struct Permutation {
  unsigned Lanes;
  Type *Entry, *Index;
  unsigned MostRegisters; // that a table may take
  Intrinsic::ID One;      // reads one register
  Intrinsic::ID Two;      // reads two, not_intrinsic if the target cannot
  Intrinsic::ID Blend;    // the substitute: blends by a third vector's signs
};

struct Lookup {
  LoadInst *Load;
  Value *Index; // only its low bits count
  GlobalVariable *Table;
};

/// A double that depends on an index alone.
struct Extended {
  Value *Index; // only its low bits count
  std::string Name;
  SmallVector<Constant *, 32> Entries;
};

class Tables {
public:
  Tables(Module &M, FunctionAnalysisManager &FAM)
      : M(M), Ctx(M.getContext()), FAM(FAM) {}

  /// These two return whether the module was changed.
  bool rewrite(Function &F);
  bool inlineCalls();

  /// Functions that were made or changed, and are still there.
  SetVector<Function *> Changed;

private:
  std::optional<Permutation> ofFloats(Function &F);
  std::optional<Permutation> ofDoubles(Function &F);
  Function *declare(const Twine &Name, const Permutation &P, unsigned Lanes,
                    const Function &Model);
  void emitLoad(Function &F, GlobalVariable &Table, uint64_t Entries);
  void emitPermutation(Function &F, const ConstantDataArray &Entries,
                       const Permutation &P);
  Function *emit(GlobalVariable &Table, const Permutation &P,
                 const Function &Model, std::string &Variants);
  CallInst *emitCall(IRBuilder<> &B, Function *Scalar, Value *Index,
                     StringRef Variants);
  bool rewriteExtended(Function &F);
  GlobalVariable *tableOf(const Extended &E);

  Module &M;
  LLVMContext &Ctx;
  FunctionAnalysisManager &FAM;
};

} // namespace

std::optional<Permutation> Tables::ofFloats(Function &F) {
  Type *Entry = Type::getFloatTy(Ctx), *Index = Type::getInt32Ty(Ctx);
  if (Triple(M.getTargetTriple()).getArch() != Triple::x86_64)
    return std::nullopt;
  if (udf::hasFeatures(F, "+avx512f", FAM))
    return Permutation{16,
                       Entry,
                       Index,
                       2,
                       Intrinsic::x86_avx512_permvar_sf_512,
                       Intrinsic::x86_avx512_vpermi2var_ps_512,
                       Intrinsic::not_intrinsic};
  if (udf::hasFeatures(F, "+avx2", FAM))
    return Permutation{8,
                       Entry,
                       Index,
                       2,
                       Intrinsic::x86_avx2_permps,
                       Intrinsic::not_intrinsic,
                       Intrinsic::x86_avx_blendv_ps_256};
  return std::nullopt;
}

std::optional<Permutation> Tables::ofDoubles(Function &F) {
  if (Triple(M.getTargetTriple()).getArch() != Triple::x86_64 ||
      !udf::hasFeatures(F, "+avx512f", FAM))
    return std::nullopt;
  return Permutation{8,
                     Type::getDoubleTy(Ctx),
                     Type::getInt64Ty(Ctx),
                     4,
                     Intrinsic::x86_avx512_permvar_df_512,
                     Intrinsic::x86_avx512_vpermi2var_pd_512,
                     Intrinsic::not_intrinsic};
}

static const ConstantDataArray *entriesOf(const GlobalVariable &Table) {
  return Table.isConstant() && Table.hasDefinitiveInitializer()
             ? dyn_cast<ConstantDataArray>(Table.getInitializer())
             : nullptr;
}

/// Finds a load of table[i & (N - 1)] where the table is exactly N floats. The
/// load may be one of the entry's encoding.
static std::optional<Lookup> findLookup(LoadInst &Load, unsigned MostEntries) {
  auto *Address = dyn_cast<GetElementPtrInst>(Load.getPointerOperand());
  if (!Address || !Load.isSimple() ||
      !(Load.getType()->isFloatTy() || Load.getType()->isIntegerTy(32)))
    return std::nullopt;
  auto *Table = dyn_cast<GlobalVariable>(Address->getPointerOperand());
  const ConstantDataArray *Entries = Table ? entriesOf(*Table) : nullptr;
  if (!Entries || !Entries->getElementType()->isFloatTy())
    return std::nullopt;
  uint64_t N = Entries->getNumElements();
  if (N < 2 || N > MostEntries || !isPowerOf2_64(N))
    return std::nullopt;

  // The index is into the array or, in newer LLVM, into floats.
  bool OfArray = Address->getSourceElementType() == Table->getValueType() &&
                 Address->getNumIndices() == 2 &&
                 match(Address->getOperand(1), m_Zero());
  bool OfFloats = Address->getSourceElementType()->isFloatTy() &&
                  Address->getNumIndices() == 1;
  Value *Index = Address->getOperand(Address->getNumOperands() - 1);
  if (auto *Extended = dyn_cast<CastInst>(Index))
    if (isa<ZExtInst, SExtInst>(Extended))
      Index = Extended->getOperand(0);
  Value *Unmasked;
  if (!(OfArray || OfFloats) || Index->getType()->getIntegerBitWidth() < 32 ||
      !match(Index, m_And(m_Value(Unmasked), m_SpecificInt(N - 1))))
    return std::nullopt;
  return Lookup{&Load, Unmasked, Table};
}

void udf::markLateInline(Function &F) {
  F.addFnAttr(LateInlineMark);
  F.setDoesNotThrow();
  F.setDoesNotAccessMemory();
  F.addFnAttr(Attribute::WillReturn);
}

/// The type float(i32) or double(i64), or its vector form, for one table.
Function *Tables::declare(const Twine &Name, const Permutation &P,
                          unsigned Lanes, const Function &Model) {
  Type *Result = P.Entry, *Index = P.Index;
  if (Lanes > 1) {
    Result = FixedVectorType::get(Result, Lanes);
    Index = FixedVectorType::get(Index, Lanes);
  }
  Function *F = Function::Create(FunctionType::get(Result, Index, false),
                                 GlobalValue::InternalLinkage, Name, M);
  udf::copyTarget(Model, *F);
  Changed.insert(F);
  udf::markLateInline(*F);
  return F;
}

void Tables::emitLoad(Function &F, GlobalVariable &Table, uint64_t Entries) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", &F));
  Value *Masked = B.CreateAnd(F.getArg(0), Entries - 1);
  Value *Address = B.CreateInBoundsGEP(
      Table.getValueType(), &Table,
      {B.getInt64(0), B.CreateZExt(Masked, B.getInt64Ty())});
  B.CreateRet(B.CreateLoad(F.getReturnType(), Address));
}

void Tables::emitPermutation(Function &F, const ConstantDataArray &Entries,
                             const Permutation &P) {
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", &F));
  unsigned N = Entries.getNumElements();
  // A table shorter than a register repeats, so the index is modulo the lanes.
  auto Part = [&](unsigned Start) {
    SmallVector<Constant *, 16> Lanes;
    for (unsigned I = 0; I < P.Lanes; ++I)
      Lanes.push_back(Entries.getElementAsConstant((Start + I) % N));
    return ConstantVector::get(Lanes);
  };
  auto *IndexTy = cast<FixedVectorType>(F.getArg(0)->getType());
  unsigned Lanes = IndexTy->getNumElements();
  SmallVector<int, 16> Widen(P.Lanes, /*poison*/ -1), Narrow;
  for (unsigned I = 0; I < Lanes; ++I) {
    Widen[I] = static_cast<int>(I);
    Narrow.push_back(static_cast<int>(I));
  }
  Value *Index = F.getArg(0);
  if (Lanes < P.Lanes)
    Index = B.CreateShuffleVector(Index, Widen);
  auto OfTwo = [&](unsigned Start) {
    return B.CreateIntrinsic(P.Two, {},
                             {Part(Start), Index, Part(Start + P.Lanes)});
  };
  Value *Result;
  if (N <= P.Lanes) {
    Result = B.CreateIntrinsic(P.One, {}, {Part(0), Index});
  } else if (N > 2 * P.Lanes) {
    Value *Low = OfTwo(0), *High = OfTwo(2 * P.Lanes);
    Value *Bit = B.CreateAnd(Index, 2 * P.Lanes);
    Result = B.CreateSelect(B.CreateIsNotNull(Bit), High, Low);
  } else if (P.Two != Intrinsic::not_intrinsic) {
    Result = OfTwo(0);
  } else {
    // The blend looks at the sign, so the index's next bit moves there.
    Value *Bit = B.CreateShl(Index, 31 - Log2_32(P.Lanes));
    Result = B.CreateIntrinsic(
        P.Blend, {},
        {B.CreateIntrinsic(P.One, {}, {Part(0), Index}),
         B.CreateIntrinsic(P.One, {}, {Part(P.Lanes), Index}),
         B.CreateBitCast(Bit, FixedVectorType::get(P.Entry, P.Lanes))});
  }
  if (Lanes < P.Lanes)
    Result = B.CreateShuffleVector(Result, Narrow);
  B.CreateRet(Result);
}

/// The functions of one table; \p Variants receives the mapping to vectors.
Function *Tables::emit(GlobalVariable &Table, const Permutation &P,
                       const Function &Model, std::string &Variants) {
  const ConstantDataArray &Entries = *entriesOf(Table);
  unsigned Bits = P.Entry->getScalarSizeInBits();
  Function *Scalar = declare("__udf_table." + Table.getName(), P, 1, Model);
  emitLoad(*Scalar, Table, Entries.getNumElements());
  for (unsigned Lanes = 256 / Bits; Lanes <= P.Lanes; Lanes *= 2) {
    Function *F =
        declare(Scalar->getName() + ".v" + Twine(Lanes), P, Lanes, Model);
    udf::requireVectorWidth(*F, P.Lanes * Bits);
    emitPermutation(*F, Entries, P);
    udf::addVariant(Variants, *Scalar, F->getName(), Lanes);
  }
  return Scalar;
}

CallInst *Tables::emitCall(IRBuilder<> &B, Function *Scalar, Value *Index,
                           StringRef Variants) {
  Type *IndexTy = Scalar->getFunctionType()->getParamType(0);
  CallInst *Call =
      B.CreateCall(Scalar, B.CreateZExtOrTrunc(Index, IndexTy), "entry");
  Call->addFnAttr(Attribute::get(Ctx, "vector-function-abi-variant", Variants));
  ++NumLookups;
  return Call;
}

/// The table of what depends on an index alone.
GlobalVariable *Tables::tableOf(const Extended &E) {
  SmallVector<uint64_t, 32> Entries;
  for (Constant *Entry : E.Entries)
    Entries.push_back(
        cast<ConstantFP>(Entry)->getValueAPF().bitcastToAPInt().getZExtValue());
  Constant *Init = ConstantDataArray::getFP(Type::getDoubleTy(Ctx), Entries);
  auto *Table = new GlobalVariable(M, Init->getType(), /*isConstant*/ true,
                                   GlobalValue::PrivateLinkage, Init, E.Name);
  Table->setUnnamedAddr(GlobalValue::UnnamedAddr::Global);
  return Table;
}

/// Looks up as doubles the entries that \p F extends, and sums of two.
bool Tables::rewriteExtended(Function &F) {
  std::optional<Permutation> P = ofDoubles(F);
  if (!P)
    return false;
  const DataLayout &DL = M.getDataLayout();
  MapVector<Instruction *, Extended> Found;
  for (Instruction &I : instructions(F)) {
    auto *Load =
        isa<FPExtInst>(I) ? dyn_cast<LoadInst>(I.getOperand(0)) : nullptr;
    std::optional<Lookup> L;
    if (Load && I.getType()->isDoubleTy())
      L = findLookup(*Load, P->MostRegisters * P->Lanes);
    if (!L)
      continue;
    Extended &E = Found[&I];
    E.Index = L->Index;
    E.Name = (L->Table->getName() + ".double").str();
    const ConstantDataArray &Entries = *entriesOf(*L->Table);
    for (unsigned K = 0; K < Entries.getNumElements(); ++K)
      E.Entries.push_back(ConstantFoldCastOperand(
          Instruction::FPExt, Entries.getElementAsConstant(K), I.getType(),
          DL));
  }
  if (Found.empty())
    return false;

  MapVector<Instruction *, Extended> Sums;
  for (Instruction &I : instructions(F)) {
    if (I.getOpcode() != Instruction::FAdd)
      continue;
    auto *A = Found.find(dyn_cast<Instruction>(I.getOperand(0)));
    auto *B = Found.find(dyn_cast<Instruction>(I.getOperand(1)));
    if (A == Found.end() || B == Found.end() ||
        A->second.Index != B->second.Index ||
        A->second.Entries.size() != B->second.Entries.size())
      continue;
    Extended &E = Sums[&I];
    E.Index = A->second.Index;
    E.Name = A->second.Name + ".sum";
    for (auto [X, Y] : zip_equal(A->second.Entries, B->second.Entries))
      E.Entries.push_back(
          ConstantFoldBinaryOpOperands(Instruction::FAdd, X, Y, DL));
  }

  // A sum leaves its summands without use.
  for (auto *Group : {&Sums, &Found})
    for (auto &[I, E] : *Group) {
      if (I->use_empty())
        continue;
      std::string Variants;
      Function *Scalar = emit(*tableOf(E), *P, F, Variants);
      IRBuilder<> B(I);
      LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << *I << '\n');
      I->replaceAllUsesWith(emitCall(B, Scalar, E.Index, Variants));
      if (Group == &Sums)
        I->eraseFromParent();
    }
  for (auto &[I, E] : Found)
    RecursivelyDeleteTriviallyDeadInstructions(I);
  Changed.insert(&F);
  return true;
}

bool Tables::rewrite(Function &F) {
  bool Extended = rewriteExtended(F);
  std::optional<Permutation> P = ofFloats(F);
  if (!P)
    return Extended;
  MapVector<GlobalVariable *, SmallVector<Lookup, 2>> Found;
  for (Instruction &I : instructions(F))
    if (auto *Load = dyn_cast<LoadInst>(&I))
      if (std::optional<Lookup> L =
              findLookup(*Load, P->MostRegisters * P->Lanes))
        Found[L->Table].push_back(*L);
  for (auto &[Table, Lookups] : Found) {
    std::string Variants;
    Function *Scalar = emit(*Table, *P, F, Variants);
    for (const Lookup &L : Lookups) {
      IRBuilder<> B(L.Load);
      CallInst *Call = emitCall(B, Scalar, L.Index, Variants);
      LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << *L.Load << '\n');
      L.Load->replaceAllUsesWith(B.CreateBitCast(Call, L.Load->getType()));
      L.Load->eraseFromParent();
    }
  }
  if (Found.empty())
    return Extended;
  Changed.insert(&F);
  return true;
}

bool Tables::inlineCalls() {
  SmallVector<Function *, 8> Made;
  for (Function &F : M)
    if (F.hasFnAttribute(udf::LateInlineMark))
      Made.push_back(&F);
  for (Function *F : Made) {
    for (User *U : make_early_inc_range(F->users())) {
      auto *Call = cast<CallInst>(U);
      InlineFunctionInfo Info;
      Changed.insert(Call->getFunction());
      if (InlineFunction(*Call, Info).isSuccess())
        ++NumInlined;
    }
    if (F->use_empty()) {
      Changed.remove(F);
      FAM.clear(*F, F->getName());
      F->eraseFromParent();
    }
  }
  return !Made.empty();
}

/// Returns whether the module was changed.
static bool runImpl(Tables &T, Module &M, udf::TablesPass::Stage S) {
  if (S == udf::TablesPass::Stage::Late)
    return T.inlineCalls();
  SmallVector<Function *, 8> Forms;
  for (Function &F : M)
    if (!F.isDeclaration() && F.hasFnAttribute(udf::FormMark))
      Forms.push_back(&F);
  bool Changed = false;
  for (Function *F : Forms)
    Changed |= T.rewrite(*F);
  return Changed;
}

PreservedAnalyses udf::TablesPass::run(Module &M, ModuleAnalysisManager &MAM) {
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  Tables T(M, FAM);
  return runImpl(T, M, S) ? preservedBut(T.Changed.getArrayRef(), FAM)
                          : PreservedAnalyses::all();
}
