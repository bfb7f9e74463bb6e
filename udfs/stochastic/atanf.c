// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "atan/atanf.c"

UDF_STOCHASTIC(atanf)
