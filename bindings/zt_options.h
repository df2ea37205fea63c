/* zt_options.h - the engine's options: one list. From it are made the command line, its help and its errors, what an
** embedder may set for a host, and what core.settings() gives to the Lua library. */
#ifndef zt_options_h
#define zt_options_h

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a value may be. SIZE is in bytes: 24GiB, 1.5GB; LIMIT is a SIZE, or "none", which is 0. */
typedef enum zt_option_type { ZT_FLAG, ZT_INTEGER, ZT_NUMBER, ZT_SIZE, ZT_LIMIT, ZT_CHOICE, ZT_TEXT } zt_option_type;

/* X(field of zt_settings, name as it is shown, type, least, most, value, help). 'value' stands for the value in the help; of
** a CHOICE it is the list of them. Hyphens and underscores in names are the same.
** First those that the Lua library acts on. It gets them under the field's name; a flag no_X as X = false. */
#define ZT_LUA_OPTIONS(X)                                                                                              \
  X(num_processes, "num_processes", ZT_INTEGER, 1, 4096, "N", "ranks to start on this machine; -n N is short for it")  \
  X(mixed_precision, "mixed_precision", ZT_CHOICE, 0, 0, "no|fp16|bf16",                                               \
    "what models compute in; masters are float32")                                                                     \
  X(zero_stage, "zero_stage", ZT_INTEGER, 0, 3, "0..3",                                                                \
    "what ranks share out: optimizer state, gradients, parameters")                                                    \
  X(gradient_accumulation_steps, "gradient_accumulation_steps", ZT_INTEGER, 1, INT32_MAX, "N",                         \
    "micro-steps of a step")                                                                                           \
  X(gradient_clipping, "gradient_clipping", ZT_NUMBER, 0, 1e300, "NORM", "the gradients' largest norm; 0: any")        \
  X(accumulate, "accumulate", ZT_CHOICE, 0, 0, "sharded|local",                                                        \
    "ranks add up gradients each micro-step, or at the last")                                                          \
  X(page_size, "page-size", ZT_SIZE, 0, 0, "SIZE", "parameters that move together, such as 32MiB")                     \
  X(resident_memory, "resident-memory", ZT_LIMIT, 0, 0, "SIZE|none", "most memory for gathered parameters in stage 3") \
  X(no_overlap, "no-overlap", ZT_FLAG, 0, 0, NULL, "ranks exchange when nothing is computed")                          \
  X(hash, "hash", ZT_FLAG, 0, 0, NULL, "prints a checksum of all float32 masters at the end")

/* Those of the program. */
#define ZT_PROGRAM_OPTIONS(X)                                                                                     \
  X(collective_timeout, "collective-timeout", ZT_NUMBER, 1e-3, 1e9, "SECONDS",                                    \
    "how long ranks wait for a slow one; else 1800")                                                              \
  X(device, "device", ZT_TEXT, 0, 0, "NAME", "where tensors are and ops run: cpu")                                \
  X(cpu, "cpu", ZT_FLAG, 0, 0, NULL, "the same as --device cpu")                                                  \
  X(device_memory, "device-memory", ZT_SIZE, 0, 0, "SIZE", "budget for the device's memory: 24GiB; a hard limit") \
  X(debug, "debug", ZT_FLAG, 0, 0, NULL, "errors come with a traceback")                                          \
  X(help, "help", ZT_FLAG, 0, 0, NULL, "this text")                                                               \
  X(version, "version", ZT_FLAG, 0, 0, NULL, "the version")

#define ZT_OPTIONS(X) ZT_LUA_OPTIONS(X) ZT_PROGRAM_OPTIONS(X)

typedef struct zt_setting {
  bool given;
  int64_t integer; /* INTEGER, SIZE, LIMIT */
  double number;   /* NUMBER */
  char text[48];   /* CHOICE, TEXT */
} zt_setting;

/* All zero: nothing is given. */
typedef struct zt_settings {
#define ZT_SETTING_FIELD(field, ...) zt_setting field;
  ZT_OPTIONS(ZT_SETTING_FIELD)
#undef ZT_SETTING_FIELD
} zt_settings;

/* Sets the option of that name ("zero_stage", with or without "--") from text, as the command line does; 'value' is NULL for a
** flag. ZT_INVALID says what the option takes, or names the nearest one. */
ZT_API zt_status zt_settings_set(zt_settings *settings, const char *name, const char *value);

/* A row of the list. */
typedef struct zt_option {
  const char *key;  /* the field's name */
  const char *name; /* as it is shown */
  zt_option_type type;
  double least, most;
  const char *value;
  const char *help;
  bool for_lua;
  size_t offset; /* in zt_settings */
} zt_option;

/* Row i, or NULL behind the last. */
ZT_API const zt_option *zt_option_at(int i);
/* The row of a name, up to 'length' bytes; NULL: there is none. */
ZT_API const zt_option *zt_option_find(const char *name, size_t length);
ZT_API const zt_setting *zt_option_setting(const zt_option *option, const zt_settings *settings);

#ifdef __cplusplus
}
#endif

#endif
