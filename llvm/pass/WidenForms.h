//===- WidenForms.h - The forms of a scalar UDF -----------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Scalar, vector and array forms, which udf-widen makes.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_WIDENFORMS_H
#define UDF_PASS_WIDENFORMS_H

#include "WidenWork.h"

namespace udf {

/// Writes the body of a form that is declared.
void emitForm(WidenWork &W, llvm::Function *F, const Form &Want);

} // namespace udf

#endif // UDF_PASS_WIDENFORMS_H
