// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "exp2/exp2f.c"

UDF_CANARY(exp2f)
