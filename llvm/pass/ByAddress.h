//===- ByAddress.h - Structures given by address ----------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-by-address: hands structures to functions of a module by address.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_BYADDRESS_H
#define UDF_PASS_BYADDRESS_H

#include "llvm/IR/PassManager.h"

namespace udf {

/// Changes local functions that are only called.
class ByAddressPass : public llvm::PassInfoMixin<ByAddressPass> {
public:
  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

} // namespace udf

#endif // UDF_PASS_BYADDRESS_H
