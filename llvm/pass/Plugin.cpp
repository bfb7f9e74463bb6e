//===- Plugin.cpp - Registration of the passes ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Names for opt -passes=..., and places in clang's own pipelines.
//
//===----------------------------------------------------------------------===//

#include "Branchless.h"
#include "Compat.h"
#include "GpuCalls.h"
#include "Instrument.h"
#include "Replace.h"
#include "Split.h"
#include "Tables.h"
#include "Widen.h"

#include "llvm/Passes/PassBuilder.h"

using namespace llvm;
using udf::ReplacePass;

static bool parsePass(StringRef Name, ModulePassManager &MPM) {
  if (Name == "udf-widen") {
    MPM.addPass(udf::WidenPass());
    return true;
  }
  if (Name == "udf-tables" || Name == "udf-tables<late>") {
    MPM.addPass(udf::TablesPass(Name == "udf-tables"
                                    ? udf::TablesPass::Stage::Early
                                    : udf::TablesPass::Stage::Late));
    return true;
  }
  if (Name == "udf-instrument") {
    MPM.addPass(udf::InstrumentPass());
    return true;
  }
  if (Name == "udf-branchless") {
    MPM.addPass(udf::BranchlessPass());
    return true;
  }
  if (Name == "udf-split") {
    MPM.addPass(udf::SplitPass());
    return true;
  }
  if (Name == "udf-gpu-calls") {
    MPM.addPass(udf::GpuCallsPass());
    return true;
  }
  for (auto [Spelling, Stage] :
       {std::pair{"udf-replace", ReplacePass::Stage::Whole},
        {"udf-replace<early>", ReplacePass::Stage::Early},
        {"udf-replace<middle>", ReplacePass::Stage::Middle},
        {"udf-replace<late>", ReplacePass::Stage::Late}})
    if (Name == Spelling) {
      MPM.addPass(ReplacePass(Stage));
      return true;
    }
  return false;
}

static void registerPasses(PassBuilder &PB) {
  PB.registerPipelineParsingCallback(
      [](StringRef Name, ModulePassManager &MPM,
         ArrayRef<PassBuilder::PipelineElement>) {
        return parsePass(Name, MPM);
      });
  PB.registerPipelineStartEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel Level) {
        MPM.addPass(udf::WidenPass());
        MPM.addPass(udf::InstrumentPass());
        MPM.addPass(ReplacePass(ReplacePass::Stage::Early,
                                Level != OptimizationLevel::O0));
      });
  // From LLVM 20 on the two callbacks below are handed a third argument, the
  // phase of link-time optimisation; the passes do the same in all of them.
  PB.registerOptimizerEarlyEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel Level, auto &&...) {
        MPM.addPass(ReplacePass(ReplacePass::Stage::Middle,
                                Level != OptimizationLevel::O0));
        MPM.addPass(udf::TablesPass(udf::TablesPass::Stage::Early));
      });
  PB.registerOptimizerLastEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel Level, auto &&...) {
        MPM.addPass(udf::TablesPass(udf::TablesPass::Stage::Late));
        MPM.addPass(ReplacePass(ReplacePass::Stage::Late,
                                Level != OptimizationLevel::O0));
      });
}

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo
llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "UdfPass", "0.1.0", registerPasses};
}
