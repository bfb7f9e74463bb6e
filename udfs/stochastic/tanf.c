// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "tan/tanf.c"

UDF_STOCHASTIC(tanf)
