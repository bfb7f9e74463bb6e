//===- names.c - Numbers of names -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//

#include "names.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hashOf(const char *Name) {
  uint32_t H = 2166136261u; // FNV-1a, 32 bits
  for (; *Name; ++Name)
    H = (H ^ (unsigned char)*Name) * 16777619u;
  return H;
}

int namesMake(struct names *table, const char *const *text, size_t count,
              size_t room) {
  uint32_t Size = 64;
  while (Size < 4 * room)
    Size *= 2;
  uint32_t *Buckets = calloc(Size, sizeof *Buckets);
  if (!Buckets)
    return -1;
  *table = (struct names){text, Buckets, Size - 1};
  for (size_t I = 0; I < count; ++I)
    namesAdd(table, (uint32_t)I);
  return 0;
}

void namesAdd(struct names *table, uint32_t number) {
  uint32_t B = hashOf(table->text[number]) & table->mask;
  while (table->buckets[B])
    B = (B + 1) & table->mask;
  table->buckets[B] = number + 1;
}

long namesFind(const struct names *table, const char *name) {
  if (!table->buckets)
    return -1;
  for (uint32_t B = hashOf(name) & table->mask; table->buckets[B];
       B = (B + 1) & table->mask)
    if (!strcmp(table->text[table->buckets[B] - 1], name))
      return table->buckets[B] - 1;
  return -1;
}
