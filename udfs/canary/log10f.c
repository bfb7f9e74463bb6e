// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "log10/log10f.c"

UDF_CANARY(log10f)
