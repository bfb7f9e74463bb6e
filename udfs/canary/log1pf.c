// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "log1p/log1pf.c"

UDF_CANARY(log1pf)
