// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "gelu_erf/gelu_erff.c"

UDF_CANARY(gelu_erff)
