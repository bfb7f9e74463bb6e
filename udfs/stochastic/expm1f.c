// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "expm1/expm1f.c"

UDF_STOCHASTIC(expm1f)
