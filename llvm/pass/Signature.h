//===- Signature.h - The C types of forms -----------------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// What the manifests of udf-widen and udf-instrument say of a function's type.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_SIGNATURE_H
#define UDF_PASS_SIGNATURE_H

#include "llvm/ADT/StringRef.h"
#include "llvm/IR/DerivedTypes.h"

namespace udf {

/// The lanes of a vector form, v<lanes> with a power of two from 2 to 64; 0 for
/// all other text.
unsigned vectorLanes(llvm::StringRef Kind);

/// The type of a scalar, vector or array form. An array form has the ABI of
/// MKL's vector math: (n, a, [b,] out, mode).
llvm::FunctionType *formType(llvm::StringRef Kind, llvm::Type *Element,
                             unsigned Arity);

} // namespace udf

#endif // UDF_PASS_SIGNATURE_H
