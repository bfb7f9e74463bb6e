// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "elu/eluf.c"

UDF_CANARY(eluf)
