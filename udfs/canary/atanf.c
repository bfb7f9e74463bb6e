#include "canary.h"

#include "atan/atanf.c"

UDF_CANARY(atanf)
