// SPDX-License-Identifier: Apache-2.0
// A plugin that reads behind the end of a block when LLVM's tools load it.

#include "llvm/Passes/PassBuilder.h"
#include "llvm/Passes/PassPlugin.h"

#include <vector>

extern "C" LLVM_ATTRIBUTE_WEAK llvm::PassPluginLibraryInfo
llvmGetPassPluginInfo() {
  std::vector<int> Block(4);
  volatile size_t At = Block.size();
  return {LLVM_PLUGIN_API_VERSION, "planted",
          Block.data()[At] == 7 ? "seven" : "other",
          [](llvm::PassBuilder &) {}};
}
