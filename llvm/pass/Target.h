//===- Target.h - The machine a function is compiled for --------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Attributes that say which CPU a function is for, and what that CPU offers.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_TARGET_H
#define UDF_PASS_TARGET_H

#include "llvm/IR/Function.h"
#include "llvm/IR/PassManager.h"
#include <string>

namespace udf {

/// Gives \p To the CPU, the features and the tuning of \p From, and removes
/// those that \p From lacks.
void copyTarget(const llvm::Function &From, llvm::Function &To);

/// The widest vector register, in bits (128 to 512), of the CPU that \p Model
/// is compiled for, whatever width its tuning prefers.
unsigned widestRegisterBits(const llvm::Function &Model,
                            llvm::FunctionAnalysisManager &FAM);

/// Whether the CPU that \p F is compiled for has all of \p Features, written as
/// in "target-features".
bool hasFeatures(llvm::Function &F, llvm::StringRef Features,
                 llvm::FunctionAnalysisManager &FAM);

/// Whether \p F is compiled for scalable registers of one length.
bool hasOneVectorLength(const llvm::Function &F);

/// Adds to \p Names, the text of a call's "vector-function-abi-variant", that
/// \p Variant is \p Scalar for \p Lanes lanes.
void addVariant(std::string &Names, const llvm::Function &Scalar,
                llvm::StringRef Variant, unsigned Lanes);

/// Keeps vectors of \p Bits whole in code generation.
void requireVectorWidth(llvm::Function &F, unsigned Bits);

} // namespace udf

#endif // UDF_PASS_TARGET_H
