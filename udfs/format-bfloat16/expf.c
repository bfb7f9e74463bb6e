// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "exp/expf.c"

UDF_FORMAT(expf)
