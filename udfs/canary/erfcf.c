// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "erfc/erfcf.c"

UDF_CANARY(erfcf)
