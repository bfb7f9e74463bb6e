// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "exp/expf.c"

UDF_STOCHASTIC(expf)
