//===- WidenManifest.h - What udf-widen is to make --------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The manifest of udf-widen: scalar UDFs and the forms that each is to have.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_WIDENMANIFEST_H
#define UDF_PASS_WIDENMANIFEST_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <string>

namespace llvm {
class LLVMContext;
} // namespace llvm

namespace udf {

struct Form {
  std::string Kind; // "scalar", "v<lanes>" or "array", as in the manifest
  unsigned Lanes;   // 1 for scalar, 0 for array
  std::string Symbol;
};

/// A scalar UDF, and the forms that it gets.
struct WidenedUdf {
  std::string Name;
  bool IsDouble = false;
  unsigned Arity = 1;
  // Empty when null or left out.
  std::string Scalar, Short, Quick, Fast, Accurate;
  llvm::SmallVector<Form, 4> Forms;
};

/// Reads the manifest; reports what is wrong with it and returns false.
bool readManifest(llvm::LLVMContext &Ctx, llvm::StringRef Path,
                  llvm::SmallVectorImpl<WidenedUdf> &Udfs);

} // namespace udf

#endif // UDF_PASS_WIDENMANIFEST_H
