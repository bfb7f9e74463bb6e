// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "silu/siluf.c"

UDF_CANARY(siluf)
