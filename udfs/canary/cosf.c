// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "cos/cosf.c"

UDF_CANARY(cosf)
