/* order.h - the order in which an epoch visits samples: a seeded permutation that needs no table. */
#ifndef zt_order_h
#define zt_order_h

#include <stdint.h>

#include "core/base/err.h"

/* Place of position 'i' (0 .. count-1) in epoch 'epoch' of a shuffle by 'seed': a bijection on 0 .. count-1, the same for
** any number of ranks, computed in constant memory (a Feistel network with cycle walking). */
ZT_API uint64_t zt_order_at(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i);

#endif
