// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "acos/acosf.c"

UDF_CANARY(acosf)
