#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/nearest.h"
#include "bindings/zt_options.h"

#define LUA_ROW(field, name, type, least, most, value, help) \
  {#field, name, type, least, most, value, help, true, offsetof(zt_settings, field)},
#define PROGRAM_ROW(field, name, type, least, most, value, help) \
  {#field, name, type, least, most, value, help, false, offsetof(zt_settings, field)},
static const zt_option options[] = {ZT_LUA_OPTIONS(LUA_ROW) ZT_PROGRAM_OPTIONS(PROGRAM_ROW)};
enum { N_OPTIONS = sizeof options / sizeof *options, NAME_LENGTH = 40 };

const zt_option *zt_option_at(int i) { return i < N_OPTIONS ? &options[i] : NULL; }

const zt_setting *zt_option_setting(const zt_option *option, const zt_settings *settings) {
  return (const zt_setting *)((const char *)settings + option->offset);
}

/* --- names */

static char plain(char ch) { return ch == '-' ? '_' : ch; }

static bool same_name(const char *name, const char *given, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (!name[i] || plain(name[i]) != plain(given[i])) return false;
  return name[length] == '\0';
}

const zt_option *zt_option_find(const char *name, size_t length) {
  if (length == 2 && memcmp(name, "-n", 2) == 0) name = "num_processes", length = strlen(name);
  if (length > 2 && memcmp(name, "--", 2) == 0) name += 2, length -= 2;
  for (int i = 0; i < N_OPTIONS; i++)
    if (same_name(options[i].name, name, length)) return &options[i];
  return NULL;
}

static zt_status unknown_name(const char *given) {
  char shown[N_OPTIONS][NAME_LENGTH];
  const char *names[N_OPTIONS + 1] = {NULL};
  for (int i = 0; i < N_OPTIONS; i++) {
    snprintf(shown[i], sizeof shown[i], "--%s", options[i].name);
    names[i] = shown[i];
  }
  const char *nearest = zt_nearest(given, names);
  if (!nearest) return zt_fail(ZT_INVALID, "unknown option '%.60s'", given);
  return zt_fail(ZT_INVALID, "unknown option '%.60s'; did you mean '%s'?", given, nearest);
}

/* --- values. Each says in zt_message() what is wrong. */

static zt_status not_a(const zt_option *o, const char *value, const char *what) {
  return zt_fail(ZT_INVALID, "option '--%s': '%.60s' is not %s", o->name, value, what);
}

static zt_status set_number(const zt_option *o, const char *value, double *out) {
  char *end, what[80];
  *out = strtod(value, &end);
  if (end != value && !*end && *out >= o->least && *out <= o->most) return ZT_OK;
  bool bounded = o->most < 1e9;
  snprintf(what, sizeof what, bounded ? "a number from %g to %g" : "a number from %g on", o->least, o->most);
  return not_a(o, value, what);
}

static zt_status set_integer(const zt_option *o, const char *value, int64_t *out) {
  char *end, what[80];
  errno = 0;
  *out = strtoll(value, &end, 10);
  if (end != value && !*end && !errno && (double)*out >= o->least && (double)*out <= o->most) return ZT_OK;
  snprintf(what, sizeof what, "an integer from %.0f to %.0f", o->least, o->most);
  return not_a(o, value, what);
}

/* A unit is binary (KiB, MiB, ...) or decimal (KB, MB, ...). */
static bool unit_factor(const char *unit, double *factor) {
  static const char *const prefixes = "KMGT";
  const char *prefix = *unit ? strchr(prefixes, *unit) : NULL;
  *factor = 1;
  if (!prefix) return strcmp(unit, "") == 0 || strcmp(unit, "B") == 0;
  bool binary = unit[1] == 'i';
  for (const char *p = prefixes; p <= prefix; p++) *factor *= binary ? 1024 : 1000;
  return strcmp(unit + 1, binary ? "iB" : "B") == 0;
}

static zt_status set_size(const zt_option *o, const char *value, int64_t *out) {
  char *unit;
  double factor, number = strtod(value, &unit);
  if (unit == value || !unit_factor(unit, &factor) || !(number * factor >= 1) || !(number * factor < 0x1p63))
    return not_a(o, value, o->type == ZT_LIMIT ? "a size such as 24GiB, or none" : "a size such as 24GiB");
  *out = (int64_t)(number * factor);
  return ZT_OK;
}

/* The choices stand in o->value, with '|' between them. */
static zt_status set_choice(const zt_option *o, const char *value, char text[48]) {
  char list[64], shown[96] = "", what[224];
  const char *names[8] = {NULL};
  int n = 0;
  snprintf(list, sizeof list, "%s", o->value);
  for (char *rest = list, *name = strsep(&rest, "|"); name; name = strsep(&rest, "|")) {
    if (strcmp(name, value) == 0) {
      snprintf(text, 48, "%s", name);
      return ZT_OK;
    }
    size_t used = strlen(shown);
    snprintf(shown + used, sizeof shown - used, "%s%s", n ? ", " : "", name);
    names[n++] = name;
  }
  const char *nearest = zt_nearest(value, names);
  snprintf(what, sizeof what, "one of %s%s%s%s", shown, nearest ? "; did you mean '" : "", nearest ? nearest : "",
           nearest ? "'?" : "");
  return not_a(o, value, what);
}

static zt_status set_text(const zt_option *o, const char *value, char text[48]) {
  if (snprintf(text, 48, "%s", value) < 48) return ZT_OK;
  return zt_fail(ZT_INVALID, "option '--%s': '%.60s' is too long", o->name, value);
}

static zt_status set_value(const zt_option *o, const char *value, zt_setting *s) {
  switch (o->type) {
    case ZT_FLAG:
      return ZT_OK;
    case ZT_INTEGER:
      return set_integer(o, value, &s->integer);
    case ZT_NUMBER:
      return set_number(o, value, &s->number);
    case ZT_LIMIT:
      if (strcmp(value, "none") == 0) return s->integer = 0, ZT_OK;
      return set_size(o, value, &s->integer);
    case ZT_SIZE:
      return set_size(o, value, &s->integer);
    case ZT_CHOICE:
      return set_choice(o, value, s->text);
    default:
      return set_text(o, value, s->text);
  }
}

zt_status zt_settings_set(zt_settings *settings, const char *name, const char *value) {
  const zt_option *o = zt_option_find(name, strlen(name));
  if (!o) return unknown_name(name);
  bool flag = o->type == ZT_FLAG;
  if (flag && value) return zt_fail(ZT_INVALID, "option '--%s' takes no value, not '%.60s'", o->name, value);
  if (!flag && !value) return zt_fail(ZT_INVALID, "option '--%s' needs a value: %s", o->name, o->value);
  zt_setting setting = {.given = true};
  ZT_TRY(set_value(o, value, &setting));
  memcpy((char *)settings + o->offset, &setting, sizeof setting);
  return ZT_OK;
}
