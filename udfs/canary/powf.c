// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "pow/powf.c"

UDF_CANARY_2(powf)
