// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "asinh/asinhf.c"

UDF_CANARY(asinhf)
