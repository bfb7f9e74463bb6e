//===- Instrument.h - Forms that watch themselves ---------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-instrument: makes functions count what goes in and what comes out.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_INSTRUMENT_H
#define UDF_PASS_INSTRUMENT_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Instruments the functions that the manifest (-udf-instrument-manifest)
/// names. Does nothing without a manifest.
struct InstrumentPass : llvm::PassInfoMixin<InstrumentPass> {
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

} // namespace udf

#endif // UDF_PASS_INSTRUMENT_H
