//===- InstrumentManifest.h - What udf-instrument is to watch ---*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The manifest of udf-instrument: functions, and what is known of them.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_INSTRUMENTMANIFEST_H
#define UDF_PASS_INSTRUMENTMANIFEST_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <string>

namespace llvm {
class LLVMContext;
} // namespace llvm

namespace udf {

struct Watched {
  std::string Symbol;
  std::string Kind; // scalar, v<lanes>, array, sincos
  bool IsDouble = false;
  unsigned Arity = 1;
  unsigned Slot = 0;
  int64_t Chunk = 0; // array only: elements per call of the body, 0 for all
  bool IsOrdinary = false;
  double Low = 0, High = 0;
  // f(-inf) is 0 and f(0) is 1, so these arguments pass as well and are
  // counted.
  bool IsExponential = false;
};

/// Reads the manifest; reports what is wrong with it and returns false.
bool readManifest(llvm::LLVMContext &Ctx, llvm::StringRef Path,
                  llvm::SmallVectorImpl<Watched> &All);

} // namespace udf

#endif // UDF_PASS_INSTRUMENTMANIFEST_H
