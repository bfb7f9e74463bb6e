// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "atanh/atanhf.c"

UDF_CANARY(atanhf)
