//===- InstrumentLanes.h - Forms of lanes that watch themselves -*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The code that every call of a watched scalar or vector form runs.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_INSTRUMENTLANES_H
#define UDF_PASS_INSTRUMENTLANES_H

#include "InstrumentWork.h"

namespace udf {

/// Writes the watching code of a scalar or vector form, whose body is moved.
void emitLanes(InstrumentWork &I);

} // namespace udf

#endif // UDF_PASS_INSTRUMENTLANES_H
