// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "acosh/acoshf.c"

UDF_STOCHASTIC(acoshf)
