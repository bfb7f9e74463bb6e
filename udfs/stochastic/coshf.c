// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "cosh/coshf.c"

UDF_STOCHASTIC(coshf)
