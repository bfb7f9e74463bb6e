// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "log1p/log1pf.c"

UDF_STOCHASTIC(log1pf)
