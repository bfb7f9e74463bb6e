//===- ReplaceBody.cpp - New bodies for functions that a module defines ---===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A target that the module defines comes to call its form.
//
//===----------------------------------------------------------------------===//

#include "Compat.h"
#include "ReplaceRewrite.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/Support/ModRef.h"
#include "llvm/Transforms/Utils/Cloning.h"

#define DEBUG_TYPE "udf-replace"

using namespace llvm;
using udf::isForeignUse;
using udf::LinkedMark;
using udf::ReplacedMark;
using udf::ReplaceRun;

STATISTIC(NumBodies, "Number of function bodies replaced");

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

void udf::replaceBody(ReplaceRun &R, Tally &T, Function &F, Function &Form) {
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
    R.Changed.insert(Original);
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

  IRBuilder<> B(BasicBlock::Create(R.Ctx, "entry", &F));
  if (DISubprogram *Where = F.getSubprogram())
    B.SetCurrentDebugLocation(
        DILocation::get(R.Ctx, Where->getScopeLine(), 0, Where));
  SmallVector<Value *, 5> Args;
  for (Argument &A : F.args())
    Args.push_back(&A);
  CallInst *Call = B.CreateCall(&Form, Args);
  Call->setCallingConv(Form.getCallingConv());
  Call->setTailCall();
  attachVariants(R, *Call, Form);
  if (Form.getReturnType()->isVoidTy())
    B.CreateRetVoid();
  else
    B.CreateRet(Call);
  weakenAttributes(F, Form);
  F.addFnAttr(ReplacedMark, Form.getName());
  remarkReplaced(*Call, F.getName(), Form.getName());
  ++T.Bodies;
  ++NumBodies;
  R.Changed.insert(&F);
}
