// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "tan/tanf.c"

UDF_CANARY(tanf)
