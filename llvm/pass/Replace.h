//===- Replace.h - Functions rebound to UDFs --------------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-replace: links UDF bitcode and makes a module's functions use it.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_REPLACE_H
#define UDF_PASS_REPLACE_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Rebinds the targets of the map (-udf-replace-map) to UDFs. Does nothing
/// without a map.
class ReplacePass : public llvm::PassInfoMixin<ReplacePass> {
public:
  /// Where in a compilation the pass stands.
  enum class Stage {
    /// Alone in a pipeline: replaces, and leaves the UDFs open to any inliner.
    Whole,
    /// At the pipeline's start, before any library call is simplified away.
    /// Scalar UDFs stay calls until the vectorisers have seen them.
    Early,
    /// Before the vectorisers: catches what the simplifier has made.
    Middle,
    /// At the end: catches what is left and inlines the UDFs.
    Late
  };

  explicit ReplacePass(Stage S = Stage::Whole, bool Optimizing = true)
      : S(S), Optimizing(Optimizing) {}

  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }

private:
  Stage S;
  bool Optimizing;
};

} // namespace udf

#endif // UDF_PASS_REPLACE_H
