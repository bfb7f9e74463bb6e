// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "exp2/exp2f.c"

UDF_STOCHASTIC(exp2f)
