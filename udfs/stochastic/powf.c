// SPDX-License-Identifier: Apache-2.0
#include "stochastic.h"

// Of a line of corem, which means what it says.
#pragma clang diagnostic ignored "-Wbitwise-conditional-parentheses"
#include "pow/powf.c"

UDF_STOCHASTIC_2(powf)
