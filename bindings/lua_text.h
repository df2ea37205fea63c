/* lua_text.h - the Tokenizer class, for the bindings that take one. */
#ifndef zt_lua_text_h
#define zt_lua_text_h

#include "bindings/lua_base.h"

const zt_tokenizer *zt_check_tokenizer(lua_State *L, int arg); /* borrowed from the object; raises */

#endif
