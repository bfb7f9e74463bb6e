// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "cosh/coshf.c"

UDF_CANARY(coshf)
