// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "tanh/tanhf.c"

UDF_FORMAT(tanhf)
