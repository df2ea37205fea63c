/* ztrain.h - all of core; bindings/ztrain.h adds what knows Lua and is what an embedder includes. */
#ifndef ztrain_h
#define ztrain_h

#ifdef __cplusplus
extern "C" {
#endif

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "core/data/corpus.h"
#include "core/data/order.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "core/tensor/ops.h"
#include "core/tensor/tape.h"
#include "core/text/tokenizer.h"
#include "core/train/engine.h"

#ifdef __cplusplus
}
#endif

#endif
