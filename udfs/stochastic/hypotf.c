// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

#include "hypot/hypotf.c"

UDF_STOCHASTIC_2(hypotf)
