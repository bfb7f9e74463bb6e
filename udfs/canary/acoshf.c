// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "acosh/acoshf.c"

UDF_CANARY(acoshf)
