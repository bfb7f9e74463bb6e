//===- ReplaceLink.cpp - UDF bitcode in a module --------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Brings the forms of UDFs out of the bitcode into a module, where they are
// internal, compute what they compute elsewhere, and bear the marks by which
// later runs know them.
//
//===----------------------------------------------------------------------===//

#include "ReplaceAdopt.h"
#include "ReplaceCheck.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Linker/Linker.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"

#define DEBUG_TYPE "udf-replace"

using namespace llvm;
using udf::BoundMark;
using udf::LinkedMark;
using udf::ReplaceRun;
using udf::ReplaceWork;

STATISTIC(NumLinked, "Number of forms linked");

static std::unique_ptr<Module> loadBitcode(ReplaceRun &R) {
  SMDiagnostic Error;
  std::unique_ptr<Module> Src = parseIRFile(R.Map.Bitcode, Error, R.Ctx);
  if (!Src) {
    R.fail("udf-replace: bitcode '" + R.Map.Bitcode +
           "' cannot be read: " + Error.getMessage() +
           "; it must be LLVM IR of a version that this compiler reads");
    return nullptr;
  }
  Triple From(Src->getTargetTriple()), To(R.M.getTargetTriple());
  if (From.getArch() != To.getArch() && From.getArch() != Triple::UnknownArch &&
      To.getArch() != Triple::UnknownArch) {
    R.fail("udf-replace: bitcode '" + R.Map.Bitcode + "' is for " + From.str() +
           " but module '" + R.M.getName() + "' is for " + To.str() +
           "; build the UDF library for that target");
    return nullptr;
  }
  // The linker warns about triples that differ in the vendor only.
  Src->setTargetTriple(R.M.getTargetTriple());
  Src->setDataLayout(R.M.getDataLayout());
  // Whatever the library's own build kept alive need not live in this module.
  for (const char *Name : {"llvm.used", "llvm.compiler.used"})
    if (GlobalVariable *List = Src->getNamedGlobal(Name))
      List->eraseFromParent();
  return Src;
}

Function *udf::linkedForm(const Module &M, StringRef Name) {
  Function *F = M.getFunction(Name);
  return F && !F->isDeclaration() && F->hasFnAttribute(LinkedMark) ? F
                                                                   : nullptr;
}

/// Finds the vector forms beside the scalar ones that are needed; the
/// vectorisers may then use them.
static SmallVector<std::string, 8>
findVariants(ReplaceRun &R, const ReplaceWork &W, const Module &Src) {
  SmallVector<std::string, 8> Found;
  if (R.Stage == ReplaceRun::Stages::Whole || !R.Optimizing)
    return Found;
  for (StringRef Name : W.Needed) {
    const Function &Scalar = *Src.getFunction(Name);
    if (!Scalar.getReturnType()->isFloatingPointTy())
      continue;
    for (unsigned Lanes = 2; Lanes <= 64; Lanes *= 2) {
      std::string Variant = (Name + "_v" + Twine(Lanes)).str();
      const Function *V = Src.getFunction(Variant);
      if (V && !V->isDeclaration() && variantFits(R, W, *V, Scalar)) {
        R.Variants[Name.str()].push_back({Lanes, Variant});
        Found.push_back(Variant);
      }
    }
  }
  return Found;
}

/// Leaves a claim on the module's names to nothing but what is wanted.
static void internalizeOthers(Module &Src, const SetVector<StringRef> &Wanted) {
  for (GlobalValue &G : Src.global_values())
    if (!G.isDeclaration() && !Wanted.contains(G.getName())) {
      G.setLinkage(GlobalValue::InternalLinkage);
      G.setVisibility(GlobalValue::DefaultVisibility);
      if (auto *Object = dyn_cast<GlobalObject>(&G))
        Object->setComdat(nullptr);
    }
}

/// Declares in the module those of the wanted functions that it lacks, and
/// returns their names.
static SmallVector<std::string, 8>
declareForms(ReplaceRun &R, const Module &Src,
             const SetVector<StringRef> &Wanted) {
  SmallVector<std::string, 8> Missing;
  for (StringRef Name : Wanted) {
    const Function &In = *Src.getFunction(Name);
    Function *Old = R.M.getFunction(Name);
    if (Old && !Old->isDeclaration()) {
      // An earlier run of the pass may have left it; between the runs the
      // optimiser may have changed an internal function's signature.
      if (Old->hasFnAttribute(LinkedMark)) {
        if (Old->getFunctionType() == In.getFunctionType() &&
            Old->getCallingConv() == In.getCallingConv())
          continue;
        Old->setName(Name + ".old");
      } else {
        R.fail("udf-replace: module '" + R.M.getName() + "' defines '" + Name +
               "' itself; rename that function, or leave this module out of "
               "the replacement");
        return {};
      }
    }
    R.M.getOrInsertFunction(Name, In.getFunctionType());
    Missing.push_back(Name.str());
  }
  return Missing;
}

/// Makes a linked form internal, and says who may inline it.
static void settleForm(const ReplaceRun &R, Function &F) {
  F.setComdat(nullptr);
  F.setLinkage(GlobalValue::InternalLinkage);
  F.setVisibility(GlobalValue::DefaultVisibility);
  F.setDSOLocal(true);
  F.addFnAttr(BoundMark);
  if (!R.Optimizing || F.getReturnType()->isVoidTy())
    return;
  if (R.Variants.count(F.getName().str()) &&
      R.Stage != ReplaceRun::Stages::Late)
    F.addFnAttr(Attribute::NoInline);
  else if (!F.hasFnAttribute(Attribute::NoInline))
    F.addFnAttr(Attribute::AlwaysInline);
}

void udf::linkForms(ReplaceRun &R, const ReplaceWork &W) {
  std::unique_ptr<Module> Src = loadBitcode(R);
  if (!Src || !checkBitcode(R, W, *Src))
    return;
  const SmallVector<std::string, 8> Variants = findVariants(R, W, *Src);
  SetVector<StringRef> Wanted(W.Needed.begin(), W.Needed.end());
  Wanted.insert(Variants.begin(), Variants.end());
  internalizeOthers(*Src, Wanted);
  for (Function &F : *Src)
    if (!F.isDeclaration())
      adopt(R, W, F);
  const SmallVector<std::string, 8> Missing = declareForms(R, *Src, Wanted);
  if (R.Failed)
    return;
  SmallVector<Function *, 8> Forms;
  if (!Missing.empty()) {
    if (Linker::linkModules(R.M, std::move(Src), Linker::LinkOnlyNeeded)) {
      R.fail("udf-replace: linking '" + R.Map.Bitcode + "' into module '" +
             R.M.getName() + "' failed");
      return;
    }
    for (const std::string &Name : Missing) {
      LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": links " << Name << '\n');
      Forms.push_back(R.M.getFunction(Name));
      settleForm(R, *Forms.back());
    }
    NumLinked += Forms.size();
    for (Function &F : R.M)
      if (F.hasFnAttribute(LinkedMark))
        R.Changed.insert(&F);
  }
  SmallVector<GlobalValue *, 8> Alive;
  if (R.Stage != ReplaceRun::Stages::Late)
    for (const std::string &Name : Variants)
      if (Function *F = linkedForm(R.M, Name))
        Alive.push_back(F);
  if (!Alive.empty())
    appendToCompilerUsed(R.M, Alive);
  warnOfMissingFma(R, W, Forms);
}
