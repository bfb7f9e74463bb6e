// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "atan2/atan2f.c"

UDF_STOCHASTIC_2(atan2f)
