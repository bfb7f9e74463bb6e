// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "acos/acosf.c"

UDF_STOCHASTIC(acosf)
