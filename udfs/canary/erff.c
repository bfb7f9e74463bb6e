#include "canary.h"

#include "erf/erff.c"

UDF_CANARY(erff)
