// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "log10/log10f.c"

UDF_STOCHASTIC(log10f)
