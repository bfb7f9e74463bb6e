// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "asin/asinf.c"

UDF_CANARY(asinf)
