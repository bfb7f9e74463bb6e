// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "softplus/softplusf.c"

UDF_CANARY(softplusf)
