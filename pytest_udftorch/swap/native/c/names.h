//===- names.h - Numbers of names -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A hash table from the text of a name to its number: open addressing over
// FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo), a quarter full at most.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_NAMES_H
#define UDFTORCH_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct names {
  const char *const *text; ///< the name of each number, owned by the caller
  uint32_t *buckets; ///< number + 1, 0 when free; null while there are none
  uint32_t mask;
};

/// Numbers \p count names in their order, in a new table that has room for \p
/// room of them. Returns 0, or -1 if there is no memory; \p table then keeps
/// its value. Release the buckets with free().
int namesMake(struct names *table, const char *const *text, size_t count,
              size_t room);

/// Adds the name with this number, for which there must be room.
void namesAdd(struct names *table, uint32_t number);

/// The number of a name, or -1.
long namesFind(const struct names *table, const char *name);

#endif
