// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "log/logf.c"

UDF_CANARY(logf)
