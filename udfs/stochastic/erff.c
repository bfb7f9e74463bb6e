// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "erf/erff.c"

UDF_STOCHASTIC(erff)
