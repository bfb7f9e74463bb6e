// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "mish/mishf.c"

UDF_CANARY(mishf)
