// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "log/logf.c"

UDF_STOCHASTIC(logf)
