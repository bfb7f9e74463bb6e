// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "sin/sinf.c"

UDF_FORMAT(sinf)
