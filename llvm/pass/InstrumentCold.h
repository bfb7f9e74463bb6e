//===- InstrumentCold.h - The rare calls of a watched function --*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Functions beside a watched one, for calls that need a closer look.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_INSTRUMENTCOLD_H
#define UDF_PASS_INSTRUMENTCOLD_H

#include "InstrumentWork.h"

namespace udf {

/// T F.turn(ptr caller, T x[, T x2]): the whole call if it is sampled or timed,
/// or if its cell is not known.
llvm::Function *emitCold(InstrumentWork &I);

/// T F.look(T x[, T x2]): the whole call if an argument is new.
llvm::Function *emitLook(InstrumentWork &I);

} // namespace udf

#endif // UDF_PASS_INSTRUMENTCOLD_H
