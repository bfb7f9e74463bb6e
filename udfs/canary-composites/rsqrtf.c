// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "rsqrt/rsqrtf.c"

UDF_CANARY(rsqrtf)
