// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "erfc/erfcf.c"

UDF_STOCHASTIC(erfcf)
