// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "log2/log2f.c"

UDF_CANARY(log2f)
