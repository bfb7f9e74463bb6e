#include "canary.h"

#include "acos/acosf.c"

UDF_CANARY(acosf)
