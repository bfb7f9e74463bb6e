// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "sin/sinf.c"

UDF_CANARY(sinf)
