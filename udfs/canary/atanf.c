// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "atan/atanf.c"

UDF_CANARY(atanf)
