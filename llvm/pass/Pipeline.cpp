//===- Pipeline.cpp - Array forms that work on two blocks at once ---------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-pipeline: begins the next block of an array form before this one is done.
//
// A processor looks ahead by as many instructions as its scheduler holds, which
// is one or two blocks of a long path. Behind a division they all wait. So the
// loop is cut in two: the instructions up to the cut run for the next block,
// the others for this one, and what passes the cut waits in a register. That is
// software pipelining by one stage (Lam, 1988).
//
// It is done where there are 32 registers of 512 bits. Paths in double need
// more of them: those with many constants became slower and keep their loop.
//
//===----------------------------------------------------------------------===//

#include "Pipeline.h"
#include "Preserved.h"
#include "Target.h"
#include "Widen.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PatternMatch.h"
#include "llvm/Support/Debug.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/ValueMapper.h"
#include <algorithm>
#include <optional>

#define DEBUG_TYPE "udf-pipeline"

using namespace llvm;
using namespace llvm::PatternMatch;

STATISTIC(NumLoops, "Number of loops cut in two");

/// The least share of the longest chain in front of a cut, and how much later
/// the cut may be if fewer values pass it; in per cent. Found by trial on a
/// Xeon (Emerald Rapids): a cut from a fifth to a half gains on nearly all of
/// corem's paths.
static constexpr unsigned Least = 30, Slack = 10;
/// A chain that ends in a long operation is cut behind it, if that is not
/// later than this share of the longest, in per cent.
static constexpr unsigned MostForLong = 65;
/// How many constants and values that pass the cut a loop of doubles may have.
/// Found by trial on an AMD EPYC (Turin): with 48 exp, log, log2, log1p and
/// tanh gained 5 to 15 per cent, with 52 sin and cos 3; with 61 they lost 5.
static constexpr unsigned MostOfDoubles = 52;
/// Cycles of a division or a square root of 16 lanes.
static constexpr unsigned LongLatency = 20;

/// Cycles until the result of \p I is there, roughly, and 0 for what costs no
/// instruction, or one that no arithmetic waits for.
static unsigned latency(const Instruction &I) {
  if (!I.getType()->isVectorTy() ||
      isa<LoadInst, BitCastInst, ShuffleVectorInst>(I))
    return 0;
  switch (I.getOpcode()) {
  case Instruction::FDiv:
    return LongLatency;
  case Instruction::FAdd:
  case Instruction::FSub:
  case Instruction::FMul:
  case Instruction::SIToFP:
    return 4;
  case Instruction::ICmp:
  case Instruction::FCmp:
    return 3;
  case Instruction::Call:
    switch (cast<CallInst>(I).getIntrinsicID()) {
    case Intrinsic::sqrt:
      return LongLatency;
    case Intrinsic::fabs:
      return 1;
    default:
      return 4;
    }
  default:
    return 1;
  }
}

static bool isLong(const Instruction &I) { return latency(I) == LongLatency; }

static bool isFree(const Instruction &I) { return latency(I) == 0; }

namespace {

/// The block loop of an array form.
struct BlockLoop {
  Loop *L;
  PHINode *Place; // of the block
  uint64_t Step;  // elements of a block
  bool OfDoubles;

  BasicBlock *header() const { return L->getHeader(); }
};

} // namespace

/// Whether \p V is \p Place and \p Step more, whatever way leads to it.
static bool isNext(Value *V, PHINode *Place, uint64_t Step) {
  if (auto *Phi = dyn_cast<PHINode>(V); Phi && Phi != Place)
    return all_of(Phi->incoming_values(),
                  [&](Value *In) { return isNext(In, Place, Step); });
  return match(V, m_Add(m_Specific(Place), m_SpecificInt(Step)));
}

/// The loop whose header reads blocks of the first array.
static std::optional<BlockLoop> blockLoop(Loop &L) {
  BasicBlock *H = L.getHeader(), *Latch = L.getLoopLatch();
  const Function &F = *H->getParent();
  for (Instruction &I : *H) {
    auto *Load = dyn_cast<LoadInst>(&I);
    auto *From =
        Load ? dyn_cast<GetElementPtrInst>(Load->getPointerOperand()) : nullptr;
    if (!From || From->getPointerOperand() != F.getArg(1) ||
        From->getNumIndices() != 1)
      continue;
    auto *Ty = dyn_cast<FixedVectorType>(Load->getType());
    auto *Phi = dyn_cast<PHINode>(From->getOperand(1));
    if (Ty && Ty->getElementType()->isFloatingPointTy() && Phi && Latch &&
        Phi->getParent() == H &&
        isNext(Phi->getIncomingValueForBlock(Latch), Phi, Ty->getNumElements()))
      return BlockLoop{&L, Phi, Ty->getNumElements(),
                       Ty->getElementType()->isDoubleTy()};
  }
  return std::nullopt;
}

/// Whether \p I may run for a block before its turn: it reads the arguments at
/// most, and needs nothing but \p Early and what the loop leaves alone.
static bool canRunEarly(const BlockLoop &Of, Instruction &I,
                        const SetVector<Instruction *> &Early) {
  if (isa<PHINode>(I) || I.isTerminator() || I.mayWriteToMemory())
    return false;
  if (auto *Load = dyn_cast<LoadInst>(&I)) {
    // The results may lie where the arguments do, but not shifted.
    const Value *From = getUnderlyingObject(Load->getPointerOperand());
    if (!Load->isSimple() || !isa<Argument>(From))
      return false;
  } else if (I.mayReadFromMemory() ||
             (isa<CallInst>(I) && !isa<IntrinsicInst>(I))) {
    return false;
  }
  return all_of(I.operands(), [&](Value *V) {
    auto *Operand = dyn_cast<Instruction>(V);
    return !Operand || Operand == Of.Place || Early.contains(Operand) ||
           Of.L->isLoopInvariant(Operand);
  });
}

/// Whether \p I shifts one value by a constant, or masks it with one.
static bool takesBits(const Instruction &I) {
  return (I.isBitwiseLogicOp() || I.isShift()) &&
         isa<Constant>(I.getOperand(1));
}

/// Takes those out of \p Early that \p Is names and only others use.
static void leaveBehind(const BlockLoop &Of, SetVector<Instruction *> &Early,
                        function_ref<bool(const Instruction &)> Is) {
  for (Instruction &I : reverse(*Of.header()))
    if (Early.contains(&I) && Is(I) && none_of(I.users(), [&](User *U) {
          return Early.contains(cast<Instruction>(U));
        }))
      Early.remove(&I);
}

/// The instructions in front of a cut at \p Depth cycles.
static SetVector<Instruction *>
inFront(const BlockLoop &Of, const DenseMap<Instruction *, unsigned> &Depths,
        unsigned Depth) {
  SetVector<Instruction *> Early;
  for (Instruction &I : *Of.header())
    if (Depths.lookup(&I) <= Depth && canRunEarly(Of, I, Early))
      Early.insert(&I);
  // To keep a mask costs an instruction.
  leaveBehind(Of, Early, [](const Instruction &I) {
    return I.getType()->isIntOrIntVectorTy(1);
  });
  return Early;
}

/// What instructions behind a cut use of those in front of it: values that
/// pass the cut, and what is free, which is done again.
static SetVector<Instruction *>
usedBehind(const SetVector<Instruction *> &Early) {
  SetVector<Instruction *> Found;
  for (Instruction *I : reverse(Early))
    if (any_of(I->users(), [&](User *U) {
          auto *Use = cast<Instruction>(U);
          return !Early.contains(Use) || (isFree(*Use) && Found.contains(Use));
        }))
      Found.insert(I);
  return Found;
}

/// How many registers it takes to carry \p Early over a cut.
static unsigned passing(const SetVector<Instruction *> &Early) {
  return count_if(usedBehind(Early),
                  [](const Instruction *I) { return !isFree(*I); });
}

/// The instructions that are to run for the next block.
static SetVector<Instruction *> choose(const BlockLoop &Of) {
  DenseMap<Instruction *, unsigned> Depths;
  unsigned Longest = 0;
  for (Instruction &I : *Of.header()) {
    unsigned Depth = 0;
    for (Value *V : I.operands())
      if (auto *Operand = dyn_cast<Instruction>(V))
        Depth = std::max(Depth, Depths.lookup(Operand));
    Depths[&I] = Depth + latency(I);
    Longest = std::max(Longest, Depths[&I]);
  }
  unsigned First = Longest * Least / 100;
  for (auto &[I, Depth] : Depths)
    if (isLong(*I) && Depth <= Longest * MostForLong / 100)
      First = std::max(First, Depth);
  SetVector<Instruction *> Best;
  unsigned Fewest = ~0U;
  for (unsigned At = First; At <= First + Longest * Slack / 100; ++At) {
    SetVector<Instruction *> Early = inFront(Of, Depths, At);
    if (unsigned N = passing(Early); N <= Fewest) {
      Fewest = N;
      Best = std::move(Early);
    }
  }
  // Bits that are taken where they are used often cost nothing: one instruction
  // does two operations (vpternlogd). Beside a division tan and atan became
  // slower.
  if (none_of(*Of.header(), isLong))
    leaveBehind(Of, Best, takesBits);
  return Best;
}

/// Whether the registers hold what a loop that is cut behind \p Early needs.
static bool fits(const BlockLoop &Of, const SetVector<Instruction *> &Early) {
  if (!Of.OfDoubles)
    return true;
  SmallPtrSet<const Constant *, 32> Constants;
  for (Instruction &I : *Of.header())
    for (Value *V : I.operands())
      if (auto *C = dyn_cast<Constant>(V); C && C->getType()->isVectorTy() &&
                                           !C->isNullValue() &&
                                           !isa<UndefValue>(C))
        Constants.insert(C);
  return Constants.size() + passing(Early) <= MostOfDoubles;
}

/// A copy of \p I with operands from \p Map, at \p B.
static Instruction *copyTo(IRBuilder<> &B, Instruction *I,
                           ValueToValueMapTy &Map) {
  Instruction *Copy = I->clone();
  RemapInstruction(Copy, Map, RF_IgnoreMissingLocals | RF_NoModuleLevelChanges);
  B.Insert(Copy, I->getName());
  Map[I] = Copy;
  return Copy;
}

/// Lets \p Early run one block ahead of the rest of the loop.
static void cut(const BlockLoop &Of, const SetVector<Instruction *> &Early) {
  BasicBlock *H = Of.header(), *Before = Of.L->getLoopPreheader();
  SetVector<Instruction *> Used = usedBehind(Early);

  // The first block is begun in front of the loop.
  ValueToValueMapTy First;
  First[Of.Place] = Of.Place->getIncomingValueForBlock(Before);
  IRBuilder<> Ahead(Before->getTerminator());
  Value *End =
      Ahead.CreateAnd(H->getParent()->getArg(0),
                      Ahead.getInt64(-static_cast<int64_t>(Of.Step)), "end");
  for (Instruction *I : Early)
    copyTo(Ahead, I, First);

  // What was begun waits, and what is free is done again for this block.
  ValueToValueMapTy Here;
  IRBuilder<> B(H, H->getFirstInsertionPt());
  for (Instruction *I : Early) {
    if (!Used.contains(I))
      continue;
    if (isFree(*I)) {
      copyTo(B, I, Here);
      continue;
    }
    PHINode *Begun = PHINode::Create(I->getType(), 2, I->getName() + ".begun");
    Begun->insertInto(H, H->begin());
    Begun->addIncoming(First[I], Before);
    Begun->addIncoming(I, Of.L->getLoopLatch());
    Here[I] = Begun;
  }
  for (Instruction *I : Used) {
    Value *Now = Here[I];
    I->replaceUsesWithIf(Now, [&](Use &U) {
      return U.getUser() != Now &&
             !Early.contains(cast<Instruction>(U.getUser()));
    });
  }

  // The last block is begun once more instead of one behind the end.
  Value *Next = B.CreateNSWAdd(Of.Place, B.getInt64(Of.Step));
  Value *Begin =
      B.CreateSelect(B.CreateICmpSLT(Next, End), Next, Of.Place, "ahead");
  for (Instruction *I : Early)
    I->replaceUsesOfWith(Of.Place, Begin);
  ++NumLoops;
}

static bool pipeline(Function &F) {
  DominatorTree DT(F);
  LoopInfo LI(DT);
  for (Loop *L : LI) {
    std::optional<BlockLoop> Of = blockLoop(*L);
    if (!Of)
      continue;
    SetVector<Instruction *> Early = choose(*Of);
    if (Early.empty() || !fits(*Of, Early))
      return false;
    LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << F.getName() << ": "
                      << Early.size() << " in front, " << passing(Early)
                      << " pass\n");
    if (!L->getLoopPreheader())
      InsertPreheaderForLoop(L, &DT, &LI, nullptr, false);
    cut(*Of, Early);
    return true;
  }
  return false;
}

PreservedAnalyses udf::PipelinePass::run(Module &M,
                                         ModuleAnalysisManager &MAM) {
  if (Triple(M.getTargetTriple()).getArch() != Triple::x86_64)
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  SmallVector<Function *, 8> Forms, Changed;
  for (Function &F : M)
    if (!F.isDeclaration() && F.hasFnAttribute(FormMark) &&
        F.getReturnType()->isVoidTy())
      Forms.push_back(&F);
  for (Function *F : Forms)
    if (hasFeatures(*F, "+avx512f", FAM) && pipeline(*F))
      Changed.push_back(F);
  return Changed.empty() ? PreservedAnalyses::all()
                         : preservedBut(Changed, FAM);
}
