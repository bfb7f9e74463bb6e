// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "tanh/tanhf.c"

UDF_STOCHASTIC(tanhf)
