// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "atan2/atan2f.c"

UDF_CANARY_2(atan2f)
