#include "canary.h"

#include "atanh/atanhf.c"

UDF_CANARY(atanhf)
