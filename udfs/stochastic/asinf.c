// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "asin/asinf.c"

UDF_STOCHASTIC(asinf)
