//===- Replace.cpp - Functions rebound to UDFs ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-replace: links UDF bitcode and makes a module's functions use it.
//
// A target that the module defines keeps its declaration, linkage and
// attributes and gets a new body, a call of the UDF, so that every reference to
// it still holds. A target that is only declared has its uses redirected:
// calls, invokes and addresses alike. Calls of an intrinsic are rewritten one
// by one; vector types of the intrinsic that the map does not name are cut into
// pieces that it does name.
//
// The linked code is internal to the module and is marked, function by function
// and call by call, so that no later run of the pass rewrites what the UDFs
// themselves call, even after they are inlined. What it computes does not
// change with the flags of the module: it takes that module's CPU, but no
// product is fused with a sum.
//
// In clang's pipeline the pass runs three times. Scalar UDFs that come with
// vector forms (<symbol>_v<lanes>) stay calls between the first and the last
// run, and carry those forms as vector-function-abi variants: the vectorisers
// then turn a loop of scalar calls into calls of the vector form, which they
// could not do with the inlined body and its branch to the accurate path.
//
//===----------------------------------------------------------------------===//

#include "Replace.h"
#include "Preserved.h"
#include "ReplaceWork.h"
#include "Usage.h"

using namespace llvm;
using udf::ReplaceMap;
using udf::ReplacePass;
using udf::ReplaceRun;
using udf::ReplaceWork;

static constexpr StringLiteral FailedMetadata = "udf-replace.failed";

void ReplaceRun::fail(const Twine &Message) {
  udf::usageError(Ctx, Message);
  Failed = true;
}

/// Returns whether the module was changed. \p Changed receives the functions
/// that were.
static bool runImpl(Module &M, FunctionAnalysisManager &FAM, StringRef Path,
                    ReplacePass::Stage Stage, bool Optimizing,
                    SetVector<Function *> &Changed) {
  // One mistake is told once, not by every run of the pass.
  if (M.getNamedMetadata(FailedMetadata))
    return false;
  bool Failed = true;
  if (std::optional<ReplaceMap> Map = udf::readMap(M.getContext(), Path)) {
    ReplaceRun R{M, M.getContext(), FAM, *Map, Stage, Optimizing};
    ReplaceWork W;
    udf::findWork(R, W);
    if (!R.Failed && !W.empty()) {
      udf::linkForms(R, W);
      if (!R.Failed)
        udf::rewriteUses(R, W);
    }
    Failed = R.Failed;
    Changed = std::move(R.Changed);
  }
  if (Failed)
    M.getOrInsertNamedMetadata(FailedMetadata);
  return Failed || !Changed.empty();
}

PreservedAnalyses ReplacePass::run(Module &M, ModuleAnalysisManager &MAM) {
  std::string Path = replaceMapPath();
  if (Path.empty())
    return PreservedAnalyses::all();
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  SetVector<Function *> Changed;
  return runImpl(M, FAM, Path, S, Optimizing, Changed)
             ? preservedBut(Changed.getArrayRef(), FAM)
             : PreservedAnalyses::all();
}
