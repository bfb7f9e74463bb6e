// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "asinh/asinhf.c"

UDF_STOCHASTIC(asinhf)
