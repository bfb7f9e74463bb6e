//===- WidenWork.cpp - One UDF that udf-widen widens ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Finds the author's functions, says what is inlined of them, and declares
// functions beside them.
//
//===----------------------------------------------------------------------===//

#include "WidenWork.h"
#include "Target.h"
#include "Usage.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/InstrTypes.h"

using namespace llvm;
using udf::WidenWork;

Function *WidenWork::find(const std::string &Name, bool IsFast) const {
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

bool WidenWork::resolve() {
  if (!U.Scalar.empty())
    return (Scalar = find(U.Scalar, /*IsFast=*/false));
  Fast = find(U.Fast, /*IsFast=*/true);
  Accurate = find(U.Accurate, /*IsFast=*/false);
  if (!U.Short.empty())
    Short = find(U.Short, /*IsFast=*/true);
  if (!U.Quick.empty())
    Quick = find(U.Quick, /*IsFast=*/true);
  return Fast && Accurate && (Short || U.Short.empty()) &&
         (Quick || U.Quick.empty());
}

/// The lane loop only vectorises when it holds no call, so everything that the
/// fast path reaches is inlined, whatever the inliner's cost model says. The
/// accurate path stays out of line, where it costs nothing.
void WidenWork::pinInlining() {
  if (Scalar) {
    Scalar->removeFnAttr(Attribute::OptimizeNone);
    Changed.insert(Scalar);
  }
  for (Function *Root : {Short, Quick, Fast}) {
    if (!Root)
      continue;
    Root->removeFnAttr(Attribute::OptimizeNone);
    SmallPtrSet<Function *, 8> Seen;
    SmallVector<Function *, 8> Todo{Root};
    while (!Todo.empty()) {
      Function *F = Todo.pop_back_val();
      if (!Seen.insert(F).second)
        continue;
      Changed.insert(F);
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
    Changed.insert(Accurate);
  }
}

Function *WidenWork::declare(StringRef Symbol, FunctionType *Ty,
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
      Attribute::UWTable,
      Attribute::SanitizeAddress,
      Attribute::SanitizeThread,
      Attribute::SanitizeMemory,
      Attribute::SanitizeHWAddress,
      Attribute::StackProtect,
      Attribute::StackProtectReq,
      Attribute::StackProtectStrong,
      Attribute::NullPointerIsValid,
      Attribute::VScaleRange};
  const Function *Model = model();
  for (Attribute A : Model->getAttributes().getFnAttrs())
    if (A.isStringAttribute())
      F->addFnAttr(A);
  for (Attribute::AttrKind Kind : Copied)
    if (Model->hasFnAttribute(Kind))
      F->addFnAttr(Model->getFnAttribute(Kind));
  bool NoUnwind = true;
  for (const Function *Step : {Scalar, Short, Quick, Fast, Accurate})
    NoUnwind &= !Step || Step->doesNotThrow();
  if (NoUnwind)
    F->setDoesNotThrow();
  Changed.insert(F);
  return F;
}

Function *WidenWork::declareCold(const Twine &Symbol, FunctionType *Ty) {
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
