// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "sinh/sinhf.c"

UDF_CANARY(sinhf)
