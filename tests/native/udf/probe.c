//===- probe.c - The UDFs that udf-widen is tested on ---------------------===//
//
// See probe.h.
//
//===----------------------------------------------------------------------===//

#include "probe.h"
