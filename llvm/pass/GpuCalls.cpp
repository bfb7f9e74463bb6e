//===- GpuCalls.cpp - What UDFs on a GPU may call -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-gpu-calls: refuses calls of what a GPU does not have.
//
// There is no C library on a GPU, and the kernel that a UDF joins is linked
// with nothing else. LLVM's intrinsics of functions of math are no instructions
// of a GPU, or approximate ones; its code generator for a GPU ends the process
// when it meets one.
//
//===----------------------------------------------------------------------===//

#include "GpuCalls.h"
#include "Usage.h"

#include "llvm/ADT/Statistic.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include <set>

#define DEBUG_TYPE "udf-gpu-calls"

using namespace llvm;

STATISTIC(NumRefused, "Number of functions refused");

/// Whether an intrinsic is a function of math, by its name: which of them there
/// are depends on the version of LLVM.
static bool isFunctionOfMath(StringRef Base) {
  static const StringSet<> Known = {
      "acos",  "asin", "atan", "atan2", "cos",    "cosh",     "exp",
      "exp10", "exp2", "log",  "log10", "log2",   "pow",      "powi",
      "sin",   "sinh", "tan",  "tanh",  "sincos", "sincospi", "modf"};
  return Known.contains(Base);
}

/// What the module uses and a GPU does not have, by name and in order.
static std::set<std::string> findMissing(const Module &M) {
  std::set<std::string> Missing;
  for (const GlobalObject &G : M.global_objects()) {
    if (!G.isDeclaration() || G.use_empty())
      continue;
    StringRef Name = G.getName();
    if (Name.consume_front("llvm.")) {
      StringRef Base = Name.take_until([](char C) { return C == '.'; });
      if (isFunctionOfMath(Base))
        Missing.insert(Base.str());
    } else {
      Missing.insert(Name.str());
    }
  }
  return Missing;
}

static void runImpl(const Module &M) {
  const std::set<std::string> Missing = findMissing(M);
  if (Missing.empty())
    return;
  NumRefused += Missing.size();
  std::string All;
  json::Array List;
  for (const std::string &Name : Missing) {
    LLVM_DEBUG(dbgs() << DEBUG_TYPE << ": " << Name << '\n');
    All += (All.empty() ? "" : ", ") + Name;
    List.push_back(Name);
  }
  udf::reportLine(M.getContext(), json::Object{{"pass", DEBUG_TYPE},
                                               {"module", M.getName()},
                                               {"missing", std::move(List)}});
  udf::usageError(M.getContext(),
                  Twine(DEBUG_TYPE ": module '") + M.getName() + "' calls " +
                      All +
                      ", which a GPU does not have; write the UDF without the "
                      "C library");
}

PreservedAnalyses udf::GpuCallsPass::run(Module &M, ModuleAnalysisManager &) {
  runImpl(M);
  return PreservedAnalyses::all();
}
