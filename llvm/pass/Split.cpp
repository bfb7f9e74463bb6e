//===- Split.cpp - Functions of libdevice in parts ------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-split: gives functions of CUDA's libdevice a value, a doubt and a rest.
//
// A kernel that computes the fast paths of several elements side by side calls
// a two-step function in parts: __nv_udf_expf_value is the fast path's result,
// __nv_udf_expf_hard whether it is not to be trusted, __nv_udf_expf_rest the
// accurate path's result. This pass makes the parts out of a whole function,
// __nv_expf, which is never in doubt of itself. udf-replace then gives those
// functions for which there is a UDF their parts' true bodies.
//
//===----------------------------------------------------------------------===//

#include "Split.h"
#include "Preserved.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "udf-split"

using namespace llvm;

STATISTIC(NumSplit, "Number of functions given parts");

static cl::list<std::string>
    Names("udf-split-functions", cl::CommaSeparated, cl::value_desc("names"),
          cl::desc("Functions of libdevice, as __nv_expf, that get parts"));

static constexpr StringLiteral Prefix = "__nv_";
static constexpr StringLiteral Parts[] = {"value", "hard", "rest"};

static std::string partName(const Function &F, StringRef Part) {
  return ("__nv_udf_" + F.getName().drop_front(Prefix.size()) + "_" + Part)
      .str();
}

/// Says why a function cannot be split; empty if it can.
static std::string obstacle(const Module &M, StringRef Name) {
  const Function *F = M.getFunction(Name);
  if (!Name.starts_with(Prefix))
    return "its name does not begin with __nv_; name a function of libdevice";
  if (!F || F->isDeclaration())
    return "the module does not define it; correct the name";
  const FunctionType *T = F->getFunctionType();
  if (T->isVarArg() || !T->getReturnType()->isFloatTy() ||
      !all_of(T->params(), [](Type *P) { return P->isFloatTy(); }))
    return "it has the type " + udf::typeName(T) +
           "; only functions from float to float have parts";
  for (StringRef Part : Parts)
    if (M.getNamedValue(partName(*F, Part)))
      return "the module already has '" + partName(*F, Part) +
             "'; split each function once";
  return "";
}

static void split(Module &M, Function &F) {
  LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << F.getName() << '\n');
  for (StringRef Part : Parts) {
    const bool IsFlag = Part == "hard";
    IRBuilder<> B(M.getContext());
    FunctionType *T =
        FunctionType::get(IsFlag ? B.getInt32Ty() : B.getFloatTy(),
                          F.getFunctionType()->params(), /*isVarArg=*/false);
    Function *New =
        Function::Create(T, GlobalValue::ExternalLinkage, partName(F, Part), M);
    B.SetInsertPoint(BasicBlock::Create(M.getContext(), "", New));
    SmallVector<Value *, 2> Args;
    for (auto [Arg, Like] : zip(New->args(), F.args())) {
      Arg.setName(Like.getName());
      Args.push_back(&Arg);
    }
    if (IsFlag) {
      B.CreateRet(B.getInt32(0));
      continue;
    }
    CallInst *Call = B.CreateCall(&F, Args);
    Call->setCallingConv(F.getCallingConv());
    B.CreateRet(Call);
  }
  ++NumSplit;
}

static bool runImpl(Module &M) {
  bool Ok = !Names.empty();
  if (!Ok)
    udf::usageError(M.getContext(),
                    Twine(DEBUG_TYPE ": module '") + M.getName() +
                        "' is given no functions; name them with "
                        "-udf-split-functions");
  StringSet<> Seen;
  for (const std::string &Name : Names) {
    const std::string Why = Seen.insert(Name).second
                                ? obstacle(M, Name)
                                : "it is named twice; name each function once";
    if (!Why.empty()) {
      udf::usageError(M.getContext(), Twine(DEBUG_TYPE ": '") + Name +
                                          "' of module '" + M.getName() +
                                          "' cannot be split: " + Why);
      Ok = false;
    }
  }
  if (Ok)
    for (const std::string &Name : Names)
      split(M, *M.getFunction(Name));
  return Ok;
}

PreservedAnalyses udf::SplitPass::run(Module &M, ModuleAnalysisManager &) {
  if (!runImpl(M))
    return PreservedAnalyses::all();
  // Functions came into being; those that were there are as they were.
  return preservedFunctions();
}
