/* sections.c - the sections of tokenizer.json around the model. */
#include <string.h>

#include "core/base/mem.h"
#include "core/text/pipeline.h"

/* --- fields */

static int add_text(const char *data, size_t nbytes, void *buffer) {
  return zt_buffer_add(buffer, data, nbytes) == ZT_OK ? 0 : -1;
}

zt_status zti_json_text(const json_t *value, char **out) {
  zt_buffer b = {0};
  if (json_dump_callback(value, add_text, &b, JSON_COMPACT | JSON_ENCODE_ANY) == 0 && b.data)
    return *out = b.data, ZT_OK;
  zt_buffer_clear(&b);
  return zt_fail(ZT_NOMEM, "host memory: none to be had to write JSON");
}

zt_status zti_refuse(const char *where, const char *key, const json_t *value) {
  char *text = NULL;
  const char *dot = *key ? "." : "";
  if (!value) return zt_fail(ZT_FORMAT, "%s%s%s is missing", where, dot, key);
  ZT_TRY(zti_json_text(value, &text));
  zt_status st = zt_fail(ZT_FORMAT, "%s%s%s: %.80s is not supported", where, dot, key, text);
  zt_free(text);
  return st;
}

/* NULL where it is absent or null. */
static const json_t *field(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_null(value) ? NULL : value;
}

zt_status zti_get_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out) {
  const json_t *value = field(object, key);
  *out = value ? json_is_true(value) : fallback;
  return !value || json_is_boolean(value) ? ZT_OK : zti_refuse(where, key, value);
}

zt_status zti_get_string(const json_t *object, const char *where, const char *key, const char **out) {
  const json_t *value = field(object, key);
  *out = json_string_value(value);
  return !value || *out ? ZT_OK : zti_refuse(where, key, value);
}

zt_status zti_get_integer(const json_t *object, const char *where, const char *key, int64_t fallback, int64_t *out) {
  const json_t *value = field(object, key);
  *out = value ? json_integer_value(value) : fallback;
  return !value || json_is_integer(value) ? ZT_OK : zti_refuse(where, key, value);
}

static bool says_nothing(const json_t *value) {
  return json_is_null(value) || json_is_false(value) || (json_is_string(value) && *json_string_value(value) == 0);
}

static bool is_among(const char *word, const char *const words[]) {
  while (*words && strcmp(word, *words) != 0) words++;
  return *words != NULL;
}

zt_status zti_check_keys(const json_t *object, const char *where, const char *const known[]) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    if (!is_among(key, known) && !says_nothing(value)) return zti_refuse(where, key, value);
  }
  return ZT_OK;
}

/* "type" of a section that is an object. */
static zt_status get_type(const json_t *section, const char *where, const char **type) {
  if (!json_is_object(section)) return zti_refuse(where, "", section);
  ZT_TRY(zti_get_string(section, where, "type", type));
  return *type ? ZT_OK : zt_fail(ZT_FORMAT, "%s.type is missing", where);
}

static zt_status get_list(const json_t *section, const char *where, const char *key, const json_t **out) {
  *out = json_object_get(section, key);
  return json_is_array(*out) ? ZT_OK : zti_refuse(where, key, *out);
}

static const char *const byte_level_keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};

/* --- normalizer */

zt_status zti_read_normalizer(const json_t *section) {
  const json_t *list = json_object_get(section, "normalizers");
  if (!section || json_is_null(section) || (json_is_array(list) && json_array_size(list) == 0)) return ZT_OK;
  return zti_refuse("normalizer", json_object_get(section, "type") ? "type" : "",
                    json_object_get(section, "type") ? json_object_get(section, "type") : section);
}

/* --- pre-tokenizer */

static zt_status read_byte_level(const json_t *section, zti_split *split) {
  bool prefix, use_regex;
  ZT_TRY(zti_check_keys(section, "pre_tokenizer", byte_level_keys));
  ZT_TRY(zti_get_bool(section, "pre_tokenizer", "add_prefix_space", true, &prefix));
  ZT_TRY(zti_get_bool(section, "pre_tokenizer", "use_regex", true, &use_regex));
  if (prefix) ZT_TRY(zti_split_add_prefix_space(split));
  return use_regex ? zti_split_add_gpt2(split) : ZT_OK;
}

static zt_status read_behavior(const json_t *section, zti_behavior *out) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const char *name;
  ZT_TRY(zti_get_string(section, "pre_tokenizer", "behavior", &name));
  for (int i = 0; name && i < 5; i++)
    if (strcmp(name, names[i]) == 0) return *out = (zti_behavior)i, ZT_OK;
  return zti_refuse("pre_tokenizer", "behavior", json_object_get(section, "behavior"));
}

static zt_status read_split(const json_t *section, zti_split *split) {
  static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
  const json_t *pattern = json_object_get(section, "pattern"), *regex = json_object_get(pattern, "Regex");
  const json_t *text = regex ? regex : json_object_get(pattern, "String");
  zti_behavior behavior = ZTI_ISOLATED;
  bool invert;
  ZT_TRY(zti_check_keys(section, "pre_tokenizer", keys));
  if (!json_is_string(text)) return zti_refuse("pre_tokenizer", "pattern", pattern);
  ZT_TRY(read_behavior(section, &behavior));
  ZT_TRY(zti_get_bool(section, "pre_tokenizer", "invert", false, &invert));
  zt_status st =
      zti_split_add_regex(split, json_string_value(text), json_string_length(text), !regex, invert, behavior);
  return zt_wrap(st, "pre_tokenizer.pattern");
}

static zt_status read_step(const json_t *step, zti_split *split, bool *byte_level) {
  const char *type;
  ZT_TRY(get_type(step, "pre_tokenizer", &type));
  if (*byte_level) return zt_fail(ZT_FORMAT, "pre_tokenizer: %s after ByteLevel is not supported", type);
  *byte_level = strcmp(type, "ByteLevel") == 0;
  if (*byte_level) return read_byte_level(step, split);
  if (strcmp(type, "Split") == 0) return read_split(step, split);
  return zti_refuse("pre_tokenizer", "type", json_object_get(step, "type"));
}

zt_status zti_read_pre_tokenizer(const json_t *section, zti_split *split) {
  const char *type = "";
  const json_t *steps, *step;
  bool byte_level = false;
  size_t i;
  ZT_TRY(get_type(section, "pre_tokenizer", &type));
  if (strcmp(type, "Sequence") != 0) {
    ZT_TRY(read_step(section, split, &byte_level));
  } else {
    ZT_TRY(get_list(section, "pre_tokenizer", "pretokenizers", &steps));
    json_array_foreach(steps, i, step) ZT_TRY(read_step(step, split, &byte_level));
  }
  return byte_level ? ZT_OK : zt_fail(ZT_FORMAT, "pre_tokenizer: a BPE model without ByteLevel is not supported");
}

/* --- decoder */

zt_status zti_read_decoder(const json_t *section) {
  const char *type = "";
  const json_t *list = json_object_get(section, "decoders");
  if (json_is_array(list) && json_array_size(list) == 1) section = json_array_get(list, 0);
  ZT_TRY(get_type(section, "decoder", &type));
  if (strcmp(type, "ByteLevel") != 0) return zti_refuse("decoder", "type", json_object_get(section, "type"));
  return zti_check_keys(section, "decoder", byte_level_keys);
}

/* --- post-processor */

static zt_status add_item(zti_template *t, zt_template_item item) {
  if (t->count >= 1024) return zt_fail(ZT_FORMAT, "post_processor: more than 1024 items");
  zt_template_item *items = zt_realloc(t->items, (t->count + 1) * sizeof *items);
  ZT_CHECK_ALLOC(items);
  t->items = items;
  t->items[t->count++] = item;
  return ZT_OK;
}

static zt_status add_text_item(zti_template *t, int text, int type_id) {
  return add_item(t, (zt_template_item){-1, text, type_id});
}

static zt_status check_id(const zti_vocab *v, const char *name, int64_t id) {
  if (zti_vocab_has(v, id)) return ZT_OK;
  return zt_fail(ZT_FORMAT, "post_processor: '%.60s' has the id %lld, which no token has", name, (long long)id);
}

/* A special token of a template is one id or several. */
static zt_status add_named(const json_t *section, const zti_vocab *v, const char *name, int type_id, zti_template *t) {
  const json_t *ids, *id, *token = json_object_get(json_object_get(section, "special_tokens"), name);
  size_t i;
  if (!token) return zt_fail(ZT_FORMAT, "post_processor.special_tokens: '%.60s' is missing", name);
  ZT_TRY(get_list(token, "post_processor.special_tokens", "ids", &ids));
  json_array_foreach(ids, i, id) {
    if (!json_is_integer(id)) return zti_refuse("post_processor.special_tokens", "ids", id);
    ZT_TRY(check_id(v, name, json_integer_value(id)));
    ZT_TRY(add_item(t, (zt_template_item){json_integer_value(id), 0, type_id}));
  }
  return ZT_OK;
}

static zt_status read_item(const json_t *section, const char *where, const json_t *item, const zti_vocab *v, bool pair,
                           zti_template *t) {
  const json_t *sequence = json_object_get(item, "Sequence"), *token = json_object_get(item, "SpecialToken");
  const json_t *what = sequence ? sequence : token;
  const char *name = NULL;
  int64_t type_id;
  if (!what) return zti_refuse("post_processor", where, item);
  ZT_TRY(zti_get_string(what, "post_processor", "id", &name));
  ZT_TRY(zti_get_integer(what, "post_processor", "type_id", 0, &type_id));
  if (!name || type_id < 0 || type_id > 1 << 20) return zti_refuse("post_processor", where, item);
  if (token) return add_named(section, v, name, (int)type_id, t);
  bool is_b = strcmp(name, "B") == 0;
  if (!(strcmp(name, "A") == 0 || (pair && is_b))) return zti_refuse("post_processor", where, item);
  return add_text_item(t, is_b, (int)type_id);
}

static zt_status read_items(const json_t *section, const char *where, const zti_vocab *v, bool pair, zti_template *t) {
  const json_t *items, *item;
  size_t i;
  ZT_TRY(get_list(section, "post_processor", where, &items));
  json_array_foreach(items, i, item) ZT_TRY(read_item(section, where, item, v, pair, t));
  return ZT_OK;
}

static zt_status get_token_pair(const json_t *section, const char *key, const zti_vocab *v, zt_template_item *item) {
  const json_t *pair = json_object_get(section, key), *name = json_array_get(pair, 0), *id = json_array_get(pair, 1);
  if (!json_is_string(name) || !json_is_integer(id)) return zti_refuse("post_processor", key, pair);
  *item = (zt_template_item){json_integer_value(id), 0, 0};
  return check_id(v, json_string_value(name), item->id);
}

/* BERT: cls A sep, cls A sep B sep with type 1 from B on; RoBERTa: cls A sep sep B sep, all of type 0. */
static zt_status read_cls_sep(const json_t *section, const zti_vocab *v, bool roberta, zti_template *single,
                              zti_template *pair) {
  static const char *const keys[] = {"type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL};
  zt_template_item cls, sep;
  int second = roberta ? 0 : 1;
  ZT_TRY(zti_check_keys(section, "post_processor", keys));
  ZT_TRY(get_token_pair(section, "cls", v, &cls));
  ZT_TRY(get_token_pair(section, "sep", v, &sep));
  for (int i = 0; i < 2; i++) {
    zti_template *t = i == 0 ? single : pair;
    ZT_TRY(add_item(t, cls));
    ZT_TRY(add_text_item(t, 0, 0));
    ZT_TRY(add_item(t, sep));
  }
  if (roberta) ZT_TRY(add_item(pair, sep));
  ZT_TRY(add_text_item(pair, 1, second));
  sep.type_id = second;
  return add_item(pair, sep);
}

static zt_status read_template(const json_t *section, const zti_vocab *v, zti_template *single, zti_template *pair) {
  static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
  ZT_TRY(zti_check_keys(section, "post_processor", keys));
  ZT_TRY(read_items(section, "single", v, false, single));
  return read_items(section, "pair", v, true, pair);
}

static zt_status read_processor(const json_t *section, const zti_vocab *v, zti_template *single, zti_template *pair) {
  const char *type = "";
  ZT_TRY(get_type(section, "post_processor", &type));
  if (strcmp(type, "ByteLevel") == 0) return zti_check_keys(section, "post_processor", byte_level_keys);
  bool roberta = strcmp(type, "RobertaProcessing") == 0, bert = strcmp(type, "BertProcessing") == 0;
  if (!roberta && !bert && strcmp(type, "TemplateProcessing") != 0)
    return zti_refuse("post_processor", "type", json_object_get(section, "type"));
  if (single->count || pair->count)
    return zt_fail(ZT_FORMAT, "post_processor: %s after another is not supported", type);
  return roberta || bert ? read_cls_sep(section, v, roberta, single, pair) : read_template(section, v, single, pair);
}

zt_status zti_read_post_processor(const json_t *section, const zti_vocab *v, zti_template *single, zti_template *pair) {
  const json_t *list = json_object_get(section, "processors"), *step;
  size_t i;
  if (json_is_array(list)) {
    json_array_foreach(list, i, step) ZT_TRY(read_processor(step, v, single, pair));
  } else if (section && !json_is_null(section)) {
    ZT_TRY(read_processor(section, v, single, pair));
  }
  if (single->count || pair->count) return ZT_OK;
  ZT_TRY(add_text_item(single, 0, 0));
  ZT_TRY(add_text_item(pair, 0, 0));
  return add_text_item(pair, 1, 1);
}

/* --- all */

zt_status zti_read_sections(const json_t *root, zt_tokenizer *tok) {
  const json_t *pre = json_object_get(root, "pre_tokenizer"), *post = json_object_get(root, "post_processor");
  const json_t *decoder = json_object_get(root, "decoder");
  ZT_TRY(zti_read_normalizer(json_object_get(root, "normalizer")));
  if (!pre || json_is_null(pre))
    return zt_fail(ZT_FORMAT, "pre_tokenizer: a BPE model without ByteLevel is not supported");
  if (!decoder || json_is_null(decoder)) return zt_fail(ZT_FORMAT, "decoder: null is not supported");
  ZT_TRY(zti_read_pre_tokenizer(pre, &tok->split));
  ZT_TRY(zti_read_decoder(decoder));
  ZT_TRY(zti_read_post_processor(post, &tok->vocab, &tok->single, &tok->pair));
  ZT_TRY(zti_json_text(pre, &tok->pre_tokenizer));
  ZT_TRY(zti_json_text(decoder, &tok->decoder));
  return post ? zti_json_text(post, &tok->post_processor) : ZT_OK;
}
