// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "log2/log2f.c"

UDF_STOCHASTIC(log2f)
