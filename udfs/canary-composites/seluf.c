// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "selu/seluf.c"

UDF_CANARY(seluf)
