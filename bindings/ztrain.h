/* ztrain.h - what an embedder includes: core, and ztrain inside a lua_State. Installed as <ztrain.h>. */
#ifndef zt_ztrain_h
#define zt_ztrain_h

#include "bindings/zt_host.h"
#include "bindings/zt_lua.h"
#include "core/ztrain.h"

#endif
