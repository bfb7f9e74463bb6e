// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "sin/sinf.c"

UDF_STOCHASTIC(sinf)
