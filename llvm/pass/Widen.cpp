//===- Widen.cpp - Every ABI of a scalar UDF ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-widen: makes scalar, vector and array forms from a scalar UDF.
//
// A UDF is either one scalar function, or a branch-free fast path together with
// an accurate path. The fast path also reports when its rounding is not
// certain. Each form runs the fast path on all its lanes and joins the flags.
// Only if one is set does it call a cold function, which runs the accurate path
// on the flagged lanes. A quick path, where there is one, comes before the fast
// one in the vector and array forms, and a short path in the scalar form: the
// cold function then begins with the fast path. Array forms put the lanes that
// a quick path leaves aside, and repair them together.
//
// The pass itself widens no arithmetic. It writes a loop over the lanes of one
// block with a constant trip count, and metadata that tells LLVM's loop
// vectoriser how to treat it. The block's buffers are allocas that never
// escape, so SROA turns them into registers once the loop is straight-line
// code.
//
//===----------------------------------------------------------------------===//

#include "Widen.h"
#include "Preserved.h"
#include "Signature.h"
#include "Target.h"
#include "Usage.h"
#include "WidenForms.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include "llvm/TargetParser/Triple.h"

#define DEBUG_TYPE "udf-widen"

using namespace llvm;
using udf::Form;
using udf::WidenedUdf;
using udf::WidenWork;

STATISTIC(NumFunctions, "Number of UDFs widened");
STATISTIC(NumForms, "Number of forms generated");

static cl::opt<std::string>
    ManifestPath("udf-widen-manifest", cl::value_desc("file"),
                 cl::desc("JSON manifest of the forms udf-widen makes"));

static std::string originOf(const WidenedUdf &U, const Form &F) {
  return U.Name + ":" + F.Kind;
}

static bool isMade(const Module &M, const WidenedUdf &U, const Form &F) {
  const Function *Made = M.getFunction(F.Symbol);
  return Made && !Made->isDeclaration() &&
         Made->getFnAttribute(udf::FormMark).getValueAsString() ==
             originOf(U, F);
}

static void emit(WidenWork &W, FunctionAnalysisManager &FAM) {
  const WidenedUdf &U = W.U;
  W.pinInlining();
  W.RegisterBits = udf::widestRegisterBits(*W.model(), FAM);
  for (const Form &Want : U.Forms) {
    Function *F =
        W.declare(Want.Symbol, udf::formType(Want.Kind, W.ElemTy, U.Arity),
                  GlobalValue::ExternalLinkage);
    if (!F)
      continue;
    unsigned FormBits = Want.Lanes * W.elementBits();
    if (Want.Lanes > 1 && FormBits > W.RegisterBits) {
      udf::usageError(W.Ctx,
                      "udf-widen: form '" + Want.Kind + "' of '" + U.Name +
                          "' needs registers of " + Twine(FormBits) +
                          " bits but the target has " + Twine(W.RegisterBits) +
                          "; drop the form" +
                          (Triple(W.M.getTargetTriple()).isX86()
                               ? " or compile for a CPU that has them "
                                 "(-march=x86-64-v3: 256, -march=x86-64-v4: "
                                 "512)"
                               : ""));
      continue;
    }
    if (Want.Kind == "vx" && !udf::hasOneVectorLength(*W.model())) {
      udf::usageError(W.Ctx, "udf-widen: form 'vx' of '" + U.Name +
                                 "' needs SVE registers of one length; drop "
                                 "the form or compile with -march=armv8-a+sve "
                                 "-msve-vector-bits=256");
      continue;
    }
    F->addFnAttr(udf::FormMark, originOf(U, Want));
    udf::emitForm(W, F, Want);
    udf::reportLine(W.Ctx, json::Object{{"pass", DEBUG_TYPE},
                                        {"module", W.M.getName()},
                                        {"function", U.Name},
                                        {"form", Want.Kind},
                                        {"symbol", Want.Symbol},
                                        {"register_bits", W.RegisterBits}});
    LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": made " << Want.Symbol << '\n');
    ++NumForms;
  }
  ++NumFunctions;
}

/// Returns the functions that were made or changed.
static SmallVector<Function *, 32>
runImpl(Module &M, FunctionAnalysisManager &FAM, StringRef Path) {
  SmallVector<WidenedUdf, 8> Udfs;
  if (!udf::readManifest(M.getContext(), Path, Udfs))
    return {};
  // Both a pipeline that names the pass and clang's own may run it. Between the
  // two runs, the author's functions may have been inlined and dropped.
  erase_if(Udfs, [&](WidenedUdf &U) {
    erase_if(U.Forms, [&](const Form &F) { return isMade(M, U, F); });
    return U.Forms.empty();
  });
  // Every name is looked up before anything is written, so that one run
  // reports every mistake and a faulty manifest changes nothing.
  SmallVector<WidenWork, 8> All;
  bool Ok = true;
  for (const WidenedUdf &U : Udfs) {
    All.emplace_back(M, U);
    Ok &= All.back().resolve();
  }
  if (!Ok)
    return {};
  SmallVector<Function *, 32> Changed;
  for (WidenWork &W : All) {
    emit(W, FAM);
    append_range(Changed, W.Changed);
  }
  return Changed;
}

PreservedAnalyses udf::WidenPass::run(Module &M, ModuleAnalysisManager &MAM) {
  std::string Path =
      optionOrEnvironment(ManifestPath, "UDFTORCH_WIDEN_MANIFEST");
  if (Path.empty())
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  const SmallVector<Function *, 32> Changed = runImpl(M, FAM, Path);
  return Changed.empty() ? PreservedAnalyses::all()
                         : preservedBut(Changed, FAM);
}
