// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "cos/cosf.c"

UDF_STOCHASTIC(cosf)
