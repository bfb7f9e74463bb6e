// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "sinh/sinhf.c"

UDF_STOCHASTIC(sinhf)
