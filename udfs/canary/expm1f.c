// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "expm1/expm1f.c"

UDF_CANARY(expm1f)
