//===- Plugin.cpp - Registration of the passes ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Names for opt -passes=..., and places in clang's own pipelines.
//
//===----------------------------------------------------------------------===//

#include "Branchless.h"
#include "ByAddress.h"
#include "Compat.h"
#include "GpuCalls.h"
#include "Inline.h"
#include "Instrument.h"
#include "Lanes.h"
#include "Pipeline.h"
#include "Replace.h"
#include "Split.h"
#include "Tables.h"
#include "Widen.h"

#include "llvm/Passes/PassBuilder.h"
#include <functional>
#include <utility>

using namespace llvm;
using udf::ReplacePass;

static bool parsePass(StringRef Name, ModulePassManager &MPM) {
  using Replace = ReplacePass::Stage;
  using Tables = udf::TablesPass::Stage;
  const std::pair<StringRef, std::function<void()>> Passes[] = {
      {"udf-branchless", [&] { MPM.addPass(udf::BranchlessPass()); }},
      {"udf-by-address", [&] { MPM.addPass(udf::ByAddressPass()); }},
      {"udf-gpu-calls", [&] { MPM.addPass(udf::GpuCallsPass()); }},
      {"udf-inline", [&] { MPM.addPass(udf::InlinePass()); }},
      {"udf-instrument", [&] { MPM.addPass(udf::InstrumentPass()); }},
      {"udf-lanes", [&] { MPM.addPass(udf::LanesPass()); }},
      {"udf-pipeline", [&] { MPM.addPass(udf::PipelinePass()); }},
      {"udf-replace", [&] { MPM.addPass(ReplacePass(Replace::Whole)); }},
      {"udf-replace<early>", [&] { MPM.addPass(ReplacePass(Replace::Early)); }},
      {"udf-replace<middle>",
       [&] { MPM.addPass(ReplacePass(Replace::Middle)); }},
      {"udf-replace<late>", [&] { MPM.addPass(ReplacePass(Replace::Late)); }},
      {"udf-split", [&] { MPM.addPass(udf::SplitPass()); }},
      {"udf-tables", [&] { MPM.addPass(udf::TablesPass(Tables::Early)); }},
      {"udf-tables<late>", [&] { MPM.addPass(udf::TablesPass(Tables::Late)); }},
      {"udf-widen", [&] { MPM.addPass(udf::WidenPass()); }},
  };
  for (const auto &[Known, Add] : Passes)
    if (Name == Known) {
      Add();
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
        MPM.addPass(udf::LanesPass());
      });
  PB.registerOptimizerLastEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel Level, auto &&...) {
        MPM.addPass(udf::TablesPass(udf::TablesPass::Stage::Late));
        MPM.addPass(ReplacePass(ReplacePass::Stage::Late,
                                Level != OptimizationLevel::O0));
        MPM.addPass(udf::InlinePass(Level != OptimizationLevel::O0));
        MPM.addPass(udf::PipelinePass());
      });
}

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo
llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "UdfPass", "0.1.0", registerPasses};
}
