#include "canary.h"

#include "tanh/tanhf.c"

UDF_CANARY(tanhf)
