//===- Instrument.cpp - Forms that watch themselves -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-instrument: makes functions count what goes in and what comes out.
//
// The body of a function F moves into an internal function F.body, and F
// becomes the code that watches it. A scalar or vector form counts down to the
// next call that is sampled. It compares its arguments with bounds
// (pytest_udftorch/swap/native/c/udfprof.h) before the body and its results
// after it; these branches are hardly ever taken. They lead to the code of
// pytest_udftorch/swap/native/c/observe.c, which looks closer. Instructions
// that make masks take as long as several others, so the code here uses only
// those it cannot do without. An array form calls observe.c at once, which
// calls F.body on chunks.
//
// The results of a function with an `ordinary` range need no look: arguments
// between these bounds that are neither zero nor subnormal have ordinary
// results, and the extreme arguments have the extreme results. F then ends in a
// jump to the body.
//
//===----------------------------------------------------------------------===//

#include "Instrument.h"
#include "InstrumentLanes.h"
#include "Preserved.h"
#include "Usage.h"

#include "llvm/ADT/Statistic.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "udf-instrument"

using namespace llvm;
using udf::InstrumentWork;
using udf::Watched;

STATISTIC(NumInstrumented, "Number of functions instrumented");

static cl::opt<std::string>
    ManifestPath("udf-instrument-manifest", cl::value_desc("file"),
                 cl::desc("JSON manifest of the functions udf-instrument "
                          "makes watch themselves"));

static void emitArray(const InstrumentWork &I) {
  Function *F = I.F;
  IRBuilder<> B(BasicBlock::Create(I.Ctx, "entry", I.F));
  Type *Pointer = B.getPtrTy();
  Type *I64 = B.getInt64Ty();
  FunctionCallee Watch = I.M.getOrInsertFunction(
      I.observer("watch_array", /*WithLanes=*/false),
      FunctionType::get(B.getVoidTy(),
                        {B.getInt32Ty(), Pointer, I64, Pointer, I64, Pointer,
                         Pointer, Pointer, I64},
                        false));
  Value *Second = ConstantPointerNull::get(PointerType::getUnqual(I.Ctx));
  if (I.W.Arity == 2)
    Second = F->getArg(2);
  B.CreateCall(Watch,
               {B.getInt32(I.W.Slot), I.callerOf(B), B.getInt64(I.W.Chunk),
                I.Body, F->getArg(0), F->getArg(1), Second,
                F->getArg(I.W.Arity + 1), F->getArg(I.W.Arity + 2)});
  B.CreateRetVoid();
}

static void emitJoint(const InstrumentWork &I) {
  Function *F = I.F;
  IRBuilder<> B(BasicBlock::Create(I.Ctx, "entry", I.F));
  Value *X = F->getArg(0), *First = F->getArg(1), *Second = F->getArg(2);
  I.callBody(B, {X, First, Second}, Attribute::AlwaysInline);
  FunctionCallee Joint = I.M.getOrInsertFunction(
      ("__udf_joint_" + Twine(I.W.IsDouble ? "d1" : "f1")).str(), B.getVoidTy(),
      B.getInt32Ty(), B.getPtrTy(), I.ElemTy, I.ElemTy, I.ElemTy);
  Align ElemAlign(I.W.IsDouble ? 8 : 4);
  B.CreateCall(Joint, {B.getInt32(I.W.Slot), I.callerOf(B), X,
                       B.CreateAlignedLoad(I.ElemTy, First, ElemAlign),
                       B.CreateAlignedLoad(I.ElemTy, Second, ElemAlign)});
  B.CreateRetVoid();
}

static void emit(InstrumentWork &I) {
  const Watched &W = I.W;
  I.moveBody();
  I.F->addFnAttr(udf::DoneMark, utostr(W.Slot));
  if (W.Kind == "array")
    emitArray(I);
  else if (W.Kind == "sincos")
    emitJoint(I);
  else
    udf::emitLanes(I);
  udf::reportLine(I.Ctx, json::Object{{"pass", DEBUG_TYPE},
                                      {"module", I.M.getName()},
                                      {"symbol", W.Symbol},
                                      {"form", W.Kind},
                                      {"slot", W.Slot}});
  LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << W.Symbol << '\n');
  ++NumInstrumented;
}

/// Returns the functions that were made or changed.
static SmallVector<Function *, 32> runImpl(Module &M, StringRef Path) {
  SmallVector<Watched, 8> Entries;
  if (!udf::readManifest(M.getContext(), Path, Entries))
    return {};
  // Both a pipeline that names the pass and clang's own may run it.
  erase_if(Entries, [&](const Watched &W) {
    const Function *F = M.getFunction(W.Symbol);
    return F && F->hasFnAttribute(udf::DoneMark);
  });
  SmallVector<InstrumentWork, 8> All;
  bool Ok = true;
  for (const Watched &W : Entries) {
    All.emplace_back(M, W);
    Ok &= All.back().resolve();
  }
  if (!Ok)
    return {};
  SmallVector<Function *, 32> Changed;
  for (InstrumentWork &I : All) {
    emit(I);
    append_range(Changed, I.Changed);
  }
  return Changed;
}

PreservedAnalyses udf::InstrumentPass::run(Module &M,
                                           ModuleAnalysisManager &MAM) {
  std::string Path =
      optionOrEnvironment(ManifestPath, "UDFTORCH_INSTRUMENT_MANIFEST");
  if (Path.empty())
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  const SmallVector<Function *, 32> Changed = runImpl(M, Path);
  return Changed.empty() ? PreservedAnalyses::all()
                         : preservedBut(Changed, FAM);
}
