// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "exp/expf.c"

UDF_CANARY(expf)
