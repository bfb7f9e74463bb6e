// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "hypot/hypotf.c"

UDF_CANARY_2(hypotf)
