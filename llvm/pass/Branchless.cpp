//===- Branchless.cpp - Double divisions for GPUs -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-branchless: double divisions and square roots without a branch on GPUs.
//
// A GPU computes a correctly rounded quotient or root in a subroutine with
// branches. The sequences here start with the GPU's own approximation, which
// has 20 bits; one step of third order gives 60. They hold for normal operands,
// and for zero under the root, and err by less than two units in the last
// place. That is why functions are named: the sequences belong into fast paths,
// whose error bounds have room for it, and nowhere else.
//
//===----------------------------------------------------------------------===//

#include "Branchless.h"
#include "Compat.h"
#include "Preserved.h"
#include "Usage.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PatternMatch.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include "llvm/TargetParser/Triple.h"

#define DEBUG_TYPE "udf-branchless"

using namespace llvm;
using namespace llvm::PatternMatch;

STATISTIC(NumDivisions, "Number of divisions replaced");
STATISTIC(NumRoots, "Number of square roots replaced");

static cl::list<std::string>
    Names("udf-branchless-functions", cl::CommaSeparated,
          cl::value_desc("names"),
          cl::desc("Functions whose double divisions and square roots become "
                   "sequences without a branch"));

static bool isDivision(const Instruction &I) {
  const auto *Call = dyn_cast<IntrinsicInst>(&I);
  return I.getOpcode() == Instruction::FDiv ||
         (Call &&
          Call->getIntrinsicID() == Intrinsic::experimental_constrained_fdiv);
}

static bool isRoot(const Instruction &I) {
  const auto *Call = dyn_cast<IntrinsicInst>(&I);
  return Call &&
         (Call->getIntrinsicID() == Intrinsic::sqrt ||
          Call->getIntrinsicID() == Intrinsic::experimental_constrained_sqrt);
}

/// a / b: the reciprocal r0 of b has the error e = 1 - b * r0, and
/// 1 / b = r0 * (1 + e + e^2 + ...).
static Value *divide(IRBuilder<> &B, Value *A, Value *Divisor) {
  Value *One = ConstantFP::get(A->getType(), 1.0);
  auto Fma = [&](Value *X, Value *Y, Value *Z) {
    return B.CreateIntrinsic(Intrinsic::fma, {A->getType()}, {X, Y, Z});
  };
  Value *Negative = B.CreateFNeg(Divisor);
  Value *R0 = B.CreateIntrinsic(Intrinsic::nvvm_rcp_approx_ftz_d, {}, Divisor);
  Value *E = Fma(Negative, R0, One);
  Value *S = Fma(E, E, E);
  Value *R = Fma(R0, S, R0);
  return match(A, m_FPOne()) ? R : B.CreateFMul(A, R);
}

/// sqrt(x): with r an approximation of 1 / sqrt(x), s = x * r has the error
/// e = 1 - s * r, and sqrt(x) = s * (1 + e / 2 + 3 / 8 * e^2 + ...).
static Value *root(IRBuilder<> &B, Value *X) {
  Type *T = X->getType();
  auto Fma = [&](Value *P, Value *Q, Value *Sum) {
    return B.CreateIntrinsic(Intrinsic::fma, {T}, {P, Q, Sum});
  };
  Value *R = B.CreateIntrinsic(udf::compat::RootEstimate, {}, X);
  Value *S = B.CreateFMul(X, R);
  Value *Negative = B.CreateFNeg(S);
  Value *E = Fma(Negative, R, ConstantFP::get(T, 1.0));
  Value *P = Fma(E, ConstantFP::get(T, 0.375), ConstantFP::get(T, 0.5));
  Value *D = B.CreateFMul(S, E);
  Value *Y = Fma(D, P, S);
  Value *IsZero = B.CreateFCmpOEQ(X, ConstantFP::getZero(T));
  return B.CreateSelect(IsZero, X, Y);
}

static void rewrite(Instruction &I) {
  IRBuilder<> B(&I); // with the debug location of I
  Value *New = isRoot(I) ? root(B, I.getOperand(0))
                         : divide(B, I.getOperand(0), I.getOperand(1));
  LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << I.getFunction()->getName() << ": "
                    << I << '\n');
  if (auto *Last = dyn_cast<Instruction>(New)) {
    // What the flags say of the result still holds. Those that allow another
    // way to compute it would let LLVM undo the steps above.
    FastMathFlags Flags;
    Flags.setNoNaNs(I.hasNoNaNs());
    Flags.setNoInfs(I.hasNoInfs());
    Flags.setNoSignedZeros(I.hasNoSignedZeros());
    Last->setFastMathFlags(Flags);
  }
  New->takeName(&I);
  I.replaceAllUsesWith(New);
  I.eraseFromParent();
}

/// The first double division or root that \p F or a function that it calls
/// still holds, or null.
static const Instruction *findRemaining(const Function &F) {
  SetVector<const Function *> Reached;
  Reached.insert(&F);
  for (size_t Next = 0; Next < Reached.size(); ++Next)
    for (const Instruction &I : instructions(*Reached[Next])) {
      if ((isDivision(I) || isRoot(I)) &&
          I.getType()->getScalarType()->isDoubleTy())
        return &I;
      const auto *Call = dyn_cast<CallBase>(&I);
      const Function *Callee = Call ? Call->getCalledFunction() : nullptr;
      if (Callee && !Callee->isDeclaration())
        Reached.insert(Callee);
    }
  return nullptr;
}

/// Finds the functions by their names, or reports those that are not there.
static bool findFunctions(Module &M, SetVector<Function *> &Found) {
  const Triple Target(M.getTargetTriple());
  bool Ok = true;
  auto Fail = [&](const Twine &Message) {
    udf::usageError(M.getContext(), Twine(DEBUG_TYPE ": module '") +
                                        M.getName() + "' " + Message);
    Ok = false;
  };
  if (Names.empty())
    Fail("is given no functions; name them with -udf-branchless-functions");
  if (!Target.isNVPTX() && Target.getArch() != Triple::UnknownArch)
    Fail("is for " + Target.str() +
         ", which lacks the approximations of a GPU; compile it for nvptx64");
  for (const std::string &Name : Names) {
    Function *F = M.getFunction(Name);
    if (F && !F->isDeclaration())
      Found.insert(F);
    else
      Fail((F ? "only declares" : "has no") + Twine(" function '") + Name +
           "', which -udf-branchless-functions names; correct the name, or "
           "name a module that defines it");
  }
  return Ok;
}

static bool runImpl(Module &M, SetVector<Function *> &Changed) {
  SetVector<Function *> Functions;
  if (!findFunctions(M, Functions))
    return false;
  for (Function *F : Functions) {
    SmallVector<Instruction *, 8> Work;
    for (Instruction &I : instructions(*F))
      if (I.getType()->isDoubleTy() &&
          (I.getOpcode() == Instruction::FDiv ||
           (isRoot(I) &&
            cast<IntrinsicInst>(I).getIntrinsicID() == Intrinsic::sqrt)))
        Work.push_back(&I);
    const unsigned Roots = count_if(Work, [](auto *I) { return isRoot(*I); });
    const unsigned Divisions = Work.size() - Roots;
    for (Instruction *I : Work)
      rewrite(*I);
    NumRoots += Roots;
    NumDivisions += Divisions;
    if (!Work.empty())
      Changed.insert(F);
    udf::reportLine(M.getContext(), json::Object{{"pass", DEBUG_TYPE},
                                                 {"module", M.getName()},
                                                 {"function", F->getName()},
                                                 {"divisions", Divisions},
                                                 {"roots", Roots}});
  }
  for (const Function *F : Functions)
    if (const Instruction *I = findRemaining(*F))
      udf::usageError(
          M.getContext(),
          Twine(DEBUG_TYPE ": function '") + F->getName() +
              "' still divides or takes a root in double precision, in '" +
              I->getFunction()->getName() + "' on " +
              udf::typeName(I->getType()) +
              "; only plain scalar operations in the named functions are "
              "replaced: have the callee inlined, and the operation neither "
              "vectorised nor constrained");
  return true;
}

PreservedAnalyses udf::BranchlessPass::run(Module &M,
                                           ModuleAnalysisManager &MAM) {
  SetVector<Function *> Changed;
  runImpl(M, Changed);
  if (Changed.empty())
    return PreservedAnalyses::all();
  // Straight-line code for straight-line code: the graphs of blocks stay.
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  PreservedAnalyses OfBlocks;
  OfBlocks.preserveSet<CFGAnalyses>();
  for (Function *F : Changed)
    FAM.invalidate(*F, OfBlocks);
  return preservedFunctions();
}
