// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "erf/erff.c"

UDF_CANARY(erff)
