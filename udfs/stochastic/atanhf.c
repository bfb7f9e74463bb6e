// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "atanh/atanhf.c"

UDF_STOCHASTIC(atanhf)
