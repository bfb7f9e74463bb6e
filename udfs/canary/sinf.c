#include "canary.h"

#include "sin/sinf.c"

UDF_CANARY(sinf)
