//===- ReplaceRewrite.cpp - Uses of targets become uses of forms ----------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Calls and addresses of functions that the map names come to use the linked
// forms. Bodies and calls of intrinsics have files of their own.
//
//===----------------------------------------------------------------------===//

#include "ReplaceRewrite.h"
#include "Compat.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Analysis/OptimizationRemarkEmitter.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/Instructions.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "udf-replace"

using namespace llvm;
using udf::Binding;
using udf::IntrinsicBinding;
using udf::isForeignUse;
using udf::isUdfCode;
using udf::remarkReplaced;
using udf::ReplaceRun;
using udf::ReplaceWork;
using udf::Tallies;
using udf::Tally;

STATISTIC(NumCalls, "Number of calls redirected");
STATISTIC(NumAddresses, "Number of other uses redirected");

static constexpr StringLiteral VariantsAttribute =
    "vector-function-abi-variant";

void udf::remarkReplaced(const CallBase &Call, StringRef Target,
                         StringRef Form) {
  LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << Target << " becomes " << Form
                    << " in " << Call.getFunction()->getName() << '\n');
  OptimizationRemarkEmitter ORE(Call.getFunction());
  ORE.emit([&] {
    return OptimizationRemark(DEBUG_TYPE, "Replaced", &Call)
           << "call of " << ore::NV("Target", Target) << " now calls "
           << ore::NV("Replacement", Form);
  });
}

void udf::attachVariants(const ReplaceRun &R, CallBase &Call,
                         const Function &Form) {
  // Mappings of the function that was called before must not outlive it.
  udf::compat::removeFnAttribute(Call, VariantsAttribute);
  if (R.Stage == ReplaceRun::Stages::Late || !isa<CallInst>(Call))
    return;
  auto Found = R.Variants.find(Form.getName().str());
  if (Found == R.Variants.end())
    return;
  std::string Names;
  for (const auto &[Lanes, Variant] : Found->second) {
    if (!udf::linkedForm(R.M, Variant))
      continue;
    udf::addVariant(Names, Form, Variant, Lanes);
  }
  if (!Names.empty())
    Call.addFnAttr(Attribute::get(R.Ctx, VariantsAttribute, Names));
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

static void redirect(ReplaceRun &R, Tally &T, Function &Target,
                     Function &Form) {
  SmallVector<CallBase *, 16> Calls;
  for (Use &U : Target.uses()) {
    auto *Call = dyn_cast<CallBase>(U.getUser());
    if (Call && Call->isCallee(&U) && !isUdfCode(*Call)) {
      if (Call->getFunctionType() == Form.getFunctionType())
        Calls.push_back(Call);
      else
        R.fail("udf-replace: a call of '" + Target.getName() + "' in '" +
               Call->getFunction()->getName() + "' has the type " +
               udf::typeName(Call->getFunctionType()) +
               " but its replacement '" + Form.getName() + "' has " +
               udf::typeName(Form.getFunctionType()) +
               "; declare the function with its prototype");
    }
  }
  if (R.Failed)
    return;
  for (CallBase *Call : Calls) {
    const TargetTransformInfo &TTI =
        R.FAM.getResult<TargetIRAnalysis>(*Call->getFunction());
    SmallVector<Type *, 5> Types{Form.getReturnType()};
    append_range(Types, Form.getFunctionType()->params());
    if (!passAlike(*Call->getFunction(), Form, Types) &&
        !TTI.areTypesABICompatible(Call->getFunction(), &Form, Types)) {
      R.fail("udf-replace: '" + Call->getFunction()->getName() +
             "' is compiled for another CPU than the rest of module '" +
             R.M.getName() + "' and passes the vectors of '" +
             Target.getName() + "' in other registers than '" + Form.getName() +
             "' takes them; compile it in a module of its own");
      continue;
    }
    Call->setCalledOperand(&Form);
    R.Changed.insert(Call->getFunction());
    attachVariants(R, *Call, Form);
    remarkReplaced(*Call, Target.getName(), Form.getName());
    ++T.Calls;
    ++NumCalls;
  }
  Target.replaceUsesWithIf(&Form, [&](Use &U) {
    if (!isForeignUse(U))
      return false;
    ++T.Addresses;
    ++NumAddresses;
    R.Changed.insert(&Form); // and with it all that use it
    return true;
  });
}

static void report(const ReplaceRun &R, const Tallies &Done) {
  static constexpr StringLiteral Names[] = {"whole", "early", "middle", "late"};
  for (const auto &[Key, T] : Done)
    udf::reportLine(R.Ctx,
                    json::Object{{"pass", DEBUG_TYPE},
                                 {"module", R.M.getName()},
                                 {"stage", Names[static_cast<int>(R.Stage)]},
                                 {"target", Key.first},
                                 {"replacement", Key.second},
                                 {"bodies", T.Bodies},
                                 {"calls", T.Calls},
                                 {"addresses", T.Addresses},
                                 {"intrinsics", T.Intrinsics}});
}

void udf::rewriteUses(ReplaceRun &R, const ReplaceWork &W) {
  Tallies Done;
  for (const Binding &B : W.Bindings) {
    Function &Form = *R.M.getFunction(B.Replacement);
    Tally &T = Done[{B.Target->getName().str(), B.Replacement}];
    if (B.NewBody)
      replaceBody(R, T, *B.Target, Form);
    else
      redirect(R, T, *B.Target, Form);
  }
  for (const IntrinsicBinding &B : W.IntrinsicBindings)
    rewriteIntrinsicCalls(R, Done, B);
  report(R, Done);
}
