/* tokenizer_load.c - a tokenizer from Hugging Face's files. What older folders say in several files is put into
** the form of a tokenizer.json's sections first, so that there is one reader. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/mem.h"
#include "core/io/file.h"
#include "core/text/pipeline.h"

/* --- what transformers' classes know without being told */

typedef struct class_defaults {
  const char *name, *model_type;  /* tokenizer_class without "Tokenizer"; model_type of config.json */
  const char *roles[ZTI_N_ROLES]; /* where the vocabulary has them */
  bool add_prefix_space;
  const char *single, *pair; /* roles around the texts A and B */
} class_defaults;

/* roles: bos, eos, unk, sep, pad, cls, mask */
static const class_defaults classes[] = {
    {"GPT2", "gpt2", {"<|endoftext|>", "<|endoftext|>", "<|endoftext|>", 0, 0, 0, 0}, false, "A", "A B"},
    {"Roberta",
     "roberta",
     {"<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"},
     false,
     "cls A sep",
     "cls A sep sep B sep"},
    {"Blenderbot",
     "blenderbot",
     {"<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"},
     true,
     "A eos",
     "A eos B eos"},
};
enum { N_CLASSES = sizeof classes / sizeof *classes };

/* What is read of a folder; all JSON is owned, NULL where the file is not there. */
typedef struct loader {
  zt_tokenizer *tok;
  const char *folder;
  json_t *config, *special_map, *added_tokens, *model_config;
  const class_defaults *class; /* NULL: none that is known */
} loader;

static zt_status join(char path[PATH_MAX], const char *folder, const char *name) {
  int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);
  return n > 0 && n < PATH_MAX ? ZT_OK : zt_fail(ZT_IO, "%.100s...: the path is too long", folder);
}

/* --- JSON files beside the tokenizer */

/* Python writes model_max_length as an integer of 31 digits, which JSON libraries refuse: integers too long for 64 bits
** become real numbers. */
static zt_status widen_integers(const char *text, size_t nbytes, zt_buffer *out) {
  bool in_string = false;
  size_t from = 0;
  for (size_t i = 0; i < nbytes; i++) {
    if (in_string && text[i] == '\\')
      i++;
    else if (text[i] == '"')
      in_string = !in_string;
    if (in_string || i >= nbytes || !isdigit((unsigned char)text[i])) continue;
    size_t start = i;
    while (i + 1 < nbytes && isdigit((unsigned char)text[i + 1])) i++;
    bool real = (i + 1 < nbytes && strchr(".eE", text[i + 1])) || (start > 0 && strchr(".eE+-", text[start - 1]));
    if (i - start + 1 < 19 || real) continue;
    ZT_TRY(zt_buffer_add(out, text + from, i + 1 - from));
    ZT_TRY(zt_buffer_add(out, ".0", 2));
    from = i + 1;
  }
  return zt_buffer_add(out, text + from, nbytes - from);
}

static zt_status parse_widened(const char *path, const char *text, size_t nbytes, json_t **out) {
  zt_buffer wide = {0};
  zt_status st = widen_integers(text, nbytes, &wide);
  if (st == ZT_OK) st = zt_json_parse(path, wide.data ? wide.data : "", wide.nbytes, out);
  zt_buffer_clear(&wide);
  return st;
}

/* '*out' NULL where the file is not there. */
static zt_status load_object(const char *folder, const char *name, json_t **out) {
  char path[PATH_MAX], *text;
  size_t nbytes;
  ZT_TRY(join(path, folder, name));
  if (!zt_file_exists(path)) return ZT_OK;
  ZT_TRY(zt_file_read(path, &text, &nbytes));
  zt_status st = parse_widened(path, text, nbytes, out);
  zt_free(text);
  if (st == ZT_OK && !json_is_object(*out)) st = zt_fail(ZT_FORMAT, "%s: not a JSON object", path);
  return st;
}

static zt_status load_companions(loader *l) {
  ZT_TRY(load_object(l->folder, "tokenizer_config.json", &l->config));
  ZT_TRY(load_object(l->folder, "special_tokens_map.json", &l->special_map));
  return load_object(l->folder, "added_tokens.json", &l->added_tokens);
}

/* --- the class: by tokenizer_class, by the model's type, or GPT-2's where nothing is said */

static bool is_class(const class_defaults *c, const char *given) {
  size_t n = strlen(c->name);
  return strncmp(given, c->name, n) == 0 &&
         (strcmp(given + n, "Tokenizer") == 0 || strcmp(given + n, "TokenizerFast") == 0);
}

static zt_status find_class(loader *l) {
  const char *given = NULL, *type = NULL;
  ZT_TRY(zti_get_string(l->config, "tokenizer_config.json", "tokenizer_class", &given));
  if (!given) ZT_TRY(load_object(l->folder, "config.json", &l->model_config));
  if (!given) ZT_TRY(zti_get_string(l->model_config, "config.json", "model_type", &type));
  for (int i = 0; i < N_CLASSES; i++)
    if (given ? is_class(&classes[i], given) : type && strcmp(classes[i].model_type, type) == 0) l->class = &classes[i];
  if (!given && !type) l->class = &classes[0];
  return ZT_OK;
}

/* --- the model */

static zt_status read_vocab(const json_t *vocab, zti_vocab *v) {
  const char *text;
  json_t *id;
  if (!json_is_object(vocab)) return zt_fail(ZT_FORMAT, "the vocabulary is not a JSON object");
  ZT_TRY(zti_vocab_reserve(v, json_object_size(vocab)));
  json_object_foreach((json_t *)vocab, text, id) {
    if (!json_is_integer(id)) return zt_fail(ZT_FORMAT, "the id of token '%.60s' is not an integer", text);
    ZT_TRY(zti_vocab_add(v, text, strlen(text), json_integer_value(id)));
  }
  return ZT_OK;
}

/* "left right" */
static zt_status add_merge_line(zt_tokenizer *tok, const char *line, size_t nbytes) {
  const char *space = memchr(line, ' ', nbytes);
  size_t left = space ? (size_t)(space - line) : 0, right = space ? nbytes - left - 1 : 0;
  if (left == 0 || right == 0 || memchr(space + 1, ' ', right))
    return zt_fail(ZT_FORMAT, "'%.*s' is not two tokens", nbytes > 60 ? 60 : (int)nbytes, line);
  return zti_bpe_add_merge(&tok->bpe, &tok->vocab, line, left, space + 1, right);
}

static zt_status read_merge(const json_t *merge, zt_tokenizer *tok) {
  const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
  if (json_is_string(merge)) return add_merge_line(tok, json_string_value(merge), json_string_length(merge));
  if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
    return zt_fail(ZT_FORMAT, "neither \"left right\" nor [\"left\", \"right\"]");
  return zti_bpe_add_merge(&tok->bpe, &tok->vocab, json_string_value(left), json_string_length(left),
                           json_string_value(right), json_string_length(right));
}

static zt_status read_merges(const json_t *merges, zt_tokenizer *tok) {
  const json_t *merge;
  size_t i;
  if (!json_is_array(merges)) return zt_fail(ZT_FORMAT, "model.merges: not a list");
  json_array_foreach(merges, i, merge) ZT_TRY(zt_wrap(read_merge(merge, tok), "model.merges: merge %zu", i + 1));
  return ZT_OK;
}

static zt_status read_merges_file(const char *path, zt_tokenizer *tok) {
  char *text;
  size_t nbytes, number = 0;
  ZT_TRY(zt_file_read(path, &text, &nbytes));
  zt_status st = ZT_OK;
  for (const char *line = text, *end = text + nbytes; st == ZT_OK && line < end; number++) {
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    size_t length = (size_t)((stop ? stop : end) - line);
    size_t shown = length > 0 && line[length - 1] == '\r' ? length - 1 : length;
    bool version = number == 0 && strncmp(line, "#version", 8) == 0;
    if (shown > 0 && !version) st = zt_wrap(add_merge_line(tok, line, shown), "%s: line %zu", path, number + 1);
    line += length + (stop != NULL);
  }
  zt_free(text);
  return st;
}

static zt_status read_model(const json_t *model, zt_tokenizer *tok) {
  static const char *const keys[] = {"type",          "dropout", "unk_token", "fuse_unk",
                                     "ignore_merges", "vocab",   "merges",    NULL};
  const json_t *dropout = json_object_get(model, "dropout");
  const char *type, *unk;
  if (!json_is_object(model)) return zti_refuse("model", "", model);
  ZT_TRY(zti_get_string(model, "model", "type", &type));
  if (type && strcmp(type, "BPE") != 0) return zti_refuse("model", "type", json_object_get(model, "type"));
  ZT_TRY(zti_check_keys(model, "model", keys));
  if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
    return zti_refuse("model", "dropout", dropout);
  ZT_TRY(zti_get_bool(model, "model", "fuse_unk", false, &tok->bpe.fuse_unk));
  ZT_TRY(zti_get_bool(model, "model", "ignore_merges", false, &tok->bpe.ignore_merges));
  ZT_TRY(zt_wrap(read_vocab(json_object_get(model, "vocab"), &tok->vocab), "model.vocab"));
  ZT_TRY(zti_get_string(model, "model", "unk_token", &unk));
  if (unk) tok->bpe.unk = zti_vocab_id(&tok->vocab, unk, strlen(unk));
  if (unk && tok->bpe.unk == ZTI_NONE)
    return zt_fail(ZT_FORMAT, "model.unk_token: '%.60s' is not in the vocabulary", unk);
  ZT_TRY(read_merges(json_object_get(model, "merges"), tok));
  return zti_bpe_finish(&tok->bpe, &tok->vocab);
}

static zt_status load_vocab_and_merges(loader *l, const char *vocab_path, const char *merges_path) {
  json_t *vocab = NULL;
  zt_status st = zt_json_load(vocab_path, &vocab);
  if (st == ZT_OK) st = zt_wrap(read_vocab(vocab, &l->tok->vocab), "%s", vocab_path);
  json_decref(vocab);
  if (st == ZT_OK) st = read_merges_file(merges_path, l->tok);
  return st == ZT_OK ? zti_bpe_finish(&l->tok->bpe, &l->tok->vocab) : st;
}

/* --- added tokens */

static zt_status put_added(zt_tokenizer *tok, const char *text, int64_t id, zti_added_token token) {
  size_t ntext = strlen(text);
  uint32_t known = zti_vocab_id(&tok->vocab, text, ntext);
  if (ntext == 0) return zt_fail(ZT_FORMAT, "an added token is empty");
  if (known == ZTI_NONE)
    ZT_TRY(zti_vocab_add_literal(&tok->vocab, text, ntext, id));
  else if (known != id)
    return zt_fail(ZT_FORMAT, "token '%.60s' has the ids %u and %lld", text, known, (long long)id);
  zti_vocab_set_literal(&tok->vocab, (uint32_t)id);
  token.id = (uint32_t)id;
  return zti_added_put(&tok->added, token);
}

static zt_status read_flags(const json_t *object, const char *where, zti_added_token *t) {
  ZT_TRY(zti_get_bool(object, where, "special", t->special, &t->special));
  ZT_TRY(zti_get_bool(object, where, "lstrip", t->lstrip, &t->lstrip));
  ZT_TRY(zti_get_bool(object, where, "rstrip", t->rstrip, &t->rstrip));
  ZT_TRY(zti_get_bool(object, where, "single_word", t->single_word, &t->single_word));
  return zti_get_bool(object, where, "normalized", !t->special, &t->normalized);
}

static zt_status put_object(zt_tokenizer *tok, const json_t *object, const char *where, int64_t id) {
  const char *content;
  zti_added_token token = {0};
  if (!json_is_object(object)) return zti_refuse(where, "", object);
  ZT_TRY(zti_get_string(object, where, "content", &content));
  if (!content) return zti_refuse(where, "content", NULL);
  ZT_TRY(read_flags(object, where, &token));
  return zt_wrap(put_added(tok, content, id, token), "%s", where);
}

/* of tokenizer.json: a list of objects with their ids */
static zt_status read_added_tokens(const json_t *list, zt_tokenizer *tok) {
  const json_t *object;
  size_t i;
  ZT_TRY(zti_vocab_reserve(&tok->vocab, json_array_size(list)));
  json_array_foreach(list, i, object) {
    int64_t id;
    ZT_TRY(zti_get_integer(object, "added_tokens", "id", -1, &id));
    ZT_TRY(put_object(tok, object, "added_tokens", id));
  }
  return ZT_OK;
}

/* of tokenizer_config.json: objects by their ids */
static zt_status read_added_decoder(const json_t *decoder, zt_tokenizer *tok) {
  const char *key;
  json_t *object;
  ZT_TRY(zti_vocab_reserve(&tok->vocab, json_object_size(decoder)));
  json_object_foreach((json_t *)decoder, key, object) {
    char *end;
    long long id = strtoll(key, &end, 10);
    if (*end || end == key) return zt_fail(ZT_FORMAT, "added_tokens_decoder: '%.60s' is not an id", key);
    ZT_TRY(put_object(tok, object, "added_tokens_decoder", id));
  }
  return ZT_OK;
}

/* added_tokens.json: ids by their texts */
static zt_status read_added_file(const json_t *ids, zt_tokenizer *tok) {
  const char *text;
  json_t *id;
  ZT_TRY(zti_vocab_reserve(&tok->vocab, json_object_size(ids)));
  json_object_foreach((json_t *)ids, text, id) {
    if (!json_is_integer(id)) return zt_fail(ZT_FORMAT, "the id of token '%.60s' is not an integer", text);
    if (zti_added_get(&tok->added, json_integer_value(id)) &&
        zt_tokenizer_token_to_id(tok, text) == json_integer_value(id))
      continue;
    ZT_TRY(put_added(tok, text, json_integer_value(id), (zti_added_token){.normalized = true}));
  }
  return ZT_OK;
}

/* --- special tokens and their roles */

/* Makes 'text' special: a token that is there keeps its other flags; a new one gets the next id, as in transformers. */
static zt_status make_special(zt_tokenizer *tok, const char *text, const json_t *object, int64_t *id) {
  *id = zt_tokenizer_token_to_id(tok, text);
  if (*id < 0) ZT_TRY(zti_vocab_reserve(&tok->vocab, 1));
  if (*id < 0) *id = zt_tokenizer_vocab_size(tok);
  const zti_added_token *old = zti_added_get(&tok->added, *id);
  zti_added_token token = old ? *old : (zti_added_token){0};
  token.special = true;
  if (!old && json_is_object(object)) ZT_TRY(read_flags(object, text, &token));
  token.special = true;
  return put_added(tok, text, *id, token);
}

/* The text of "x", or of {"content": "x"}; NULL where there is none. */
static const char *token_text(const json_t *value) {
  const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
  return text && *text ? text : NULL;
}

static zt_status read_role(loader *l, zti_role role) {
  char key[32];
  snprintf(key, sizeof key, "%s_token", zti_role_names[role]);
  const json_t *value = json_object_get(l->config, key);
  if (!token_text(value)) value = json_object_get(l->special_map, key);
  const char *text = token_text(value), *usual = l->class ? l->class->roles[role] : NULL;
  if (!text && usual && zt_tokenizer_token_to_id(l->tok, usual) >= 0) text = usual, value = NULL;
  return text ? zt_wrap(make_special(l->tok, text, value, &l->tok->special[role]), "%s", key) : ZT_OK;
}

static zt_status read_more_special(const json_t *list, zt_tokenizer *tok) {
  const json_t *value;
  size_t i;
  json_array_foreach(list, i, value) {
    int64_t id;
    const char *text = token_text(value);
    if (!text) return zti_refuse("additional_special_tokens", "", value);
    ZT_TRY(make_special(tok, text, value, &id));
  }
  return ZT_OK;
}

static zt_status read_roles(loader *l) {
  static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
  for (int i = 0; i < ZTI_N_ROLES; i++) ZT_TRY(read_role(l, (zti_role)i));
  for (int i = 0; i < 2; i++) {
    ZT_TRY(read_more_special(json_object_get(l->config, lists[i]), l->tok));
    ZT_TRY(read_more_special(json_object_get(l->special_map, lists[i]), l->tok));
  }
  int64_t unk = l->tok->special[ZTI_ROLE_unk];
  if (l->tok->bpe.unk == ZTI_NONE && unk >= 0) l->tok->bpe.unk = (uint32_t)unk;
  return ZT_OK;
}

/* --- sections for folders without tokenizer.json */

static zt_status made(json_t *value, json_t **out) {
  *out = value;
  return value ? ZT_OK : zt_fail(ZT_NOMEM, "host memory: none to be had for JSON");
}

static zti_role find_role(const char *name) {
  int i = 0;
  while (i < ZTI_N_ROLES && strcmp(zti_role_names[i], name) != 0) i++;
  return (zti_role)i;
}

/* "cls A sep" as TemplateProcessing writes it; tokens that it names go to 'tokens'. */
static zt_status make_items(const zt_tokenizer *tok, const char *words, json_t *items, json_t *tokens) {
  char word[8];
  for (int used; sscanf(words, "%7s%n", word, &used) == 1; words += used) {
    zti_role role = find_role(word);
    if (role == ZTI_N_ROLES) {
      if (json_array_append_new(items, json_pack("{s{ss si}}", "Sequence", "id", word, "type_id", 0)) != 0)
        goto no_memory;
      continue;
    }
    int64_t id = tok->special[role];
    if (id < 0) return zt_fail(ZT_FORMAT, "%s_token is not set", word);
    const char *text = (const char *)tok->vocab.tokens[id].text;
    json_t *token = json_pack("{ss s[I] s[s]}", "id", text, "ids", (json_int_t)id, "tokens", text);
    if (json_object_set_new(tokens, text, token) != 0) goto no_memory;
    if (json_array_append_new(items, json_pack("{s{ss si}}", "SpecialToken", "id", text, "type_id", 0)) != 0)
      goto no_memory;
  }
  return ZT_OK;
no_memory:
  return made(NULL, &items);
}

static zt_status make_post_processor(const zt_tokenizer *tok, const char *single, const char *pair, json_t **out) {
  ZT_TRY(made(json_pack("{ss s[] s[] s{}}", "type", "TemplateProcessing", "single", "pair", "special_tokens"), out));
  json_t *tokens = json_object_get(*out, "special_tokens");
  ZT_TRY(make_items(tok, single, json_object_get(*out, "single"), tokens));
  return make_items(tok, pair, json_object_get(*out, "pair"), tokens);
}

static zt_status make_sections(loader *l, json_t **root) {
  bool prefix, add_bos;
  json_t *post = NULL;
  if (!l->class)
    return zt_fail(ZT_FORMAT,
                   "without a tokenizer.json, tokenizer_class is one of GPT2Tokenizer, RobertaTokenizer and "
                   "BlenderbotTokenizer");
  ZT_TRY(zti_get_bool(l->config, "tokenizer_config.json", "add_prefix_space", l->class->add_prefix_space, &prefix));
  ZT_TRY(zti_get_bool(l->config, "tokenizer_config.json", "add_bos_token", false, &add_bos));
  bool bos = add_bos && l->class == &classes[0];
  ZT_TRY(made(json_pack("{s{ss sb sb sb} s{ss sb sb sb}}", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space",
                        (int)prefix, "trim_offsets", 1, "use_regex", 1, "decoder", "type", "ByteLevel",
                        "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1),
              root));
  zt_status st =
      make_post_processor(l->tok, bos ? "bos A" : l->class->single, bos ? "bos A bos B" : l->class->pair, &post);
  if (st != ZT_OK) return json_decref(post), st;
  return json_object_set_new(*root, "post_processor", post) == 0 ? ZT_OK : made(NULL, &post);
}

/* --- what tokenizer_config.json says besides */

/* For the classes that we know, its add_prefix_space stands above tokenizer.json's, as in transformers. */
static zt_status override_prefix_space(loader *l, json_t *pre_tokenizer) {
  const json_t *type = json_object_get(pre_tokenizer, "type");
  bool prefix;
  if (!l->class || !json_is_boolean(json_object_get(l->config, "add_prefix_space"))) return ZT_OK;
  if (!json_is_string(type) || strcmp(json_string_value(type), "ByteLevel") != 0) return ZT_OK;
  ZT_TRY(zti_get_bool(l->config, "tokenizer_config.json", "add_prefix_space", false, &prefix));
  json_t *unused;
  return json_object_set_new(pre_tokenizer, "add_prefix_space", json_boolean(prefix)) == 0 ? ZT_OK
                                                                                           : made(NULL, &unused);
}

static bool has_type_ids(const loader *l) {
  const json_t *name, *names = json_object_get(l->config, "model_input_names");
  const zti_template *t = &l->tok->pair;
  bool has = false, has_token = false;
  size_t i;
  json_array_foreach(names, i, name) has |=
      json_is_string(name) && strcmp(json_string_value(name), "token_type_ids") == 0;
  if (json_is_array(names)) return has;
  for (i = 0; i < t->count; i++) has |= t->items[i].type_id > 0, has_token |= t->items[i].id >= 0;
  return has && has_token; /* as BERT's */
}

static zt_status read_side(const json_t *config, const char *key, bool *is_left) {
  const char *side;
  ZT_TRY(zti_get_string(config, "tokenizer_config.json", key, &side));
  *is_left = side && strcmp(side, "left") == 0;
  return !side || *is_left || strcmp(side, "right") == 0
             ? ZT_OK
             : zti_refuse("tokenizer_config.json", key, json_object_get(config, key));
}

static zt_status read_settings(loader *l) {
  zt_tokenizer_settings *s = &l->tok->settings;
  const json_t *longest = json_object_get(l->config, "model_max_length");
  if (json_is_integer(longest) && json_integer_value(longest) > 0) s->max_length = json_integer_value(longest);
  ZT_TRY(read_side(l->config, "padding_side", &s->pad_left));
  ZT_TRY(read_side(l->config, "truncation_side", &s->truncate_left));
  s->type_ids = has_type_ids(l);
  return l->config ? zti_json_text(l->config, &l->tok->config) : ZT_OK;
}

/* --- putting it together */

/* All that stands around the model. 'root' is tokenizer.json's, or NULL. */
static zt_status read_rest(loader *l, json_t *root) {
  json_t *sections = NULL;
  if (root) ZT_TRY(read_added_tokens(json_object_get(root, "added_tokens"), l->tok));
  zt_status st = read_added_decoder(json_object_get(l->config, "added_tokens_decoder"), l->tok);
  ZT_TRY(zt_wrap(st, "tokenizer_config.json"));
  ZT_TRY(zt_wrap(read_added_file(l->added_tokens, l->tok), "added_tokens.json"));
  ZT_TRY(read_roles(l));
  if (root) ZT_TRY(override_prefix_space(l, json_object_get(root, "pre_tokenizer")));
  st = root ? ZT_OK : make_sections(l, &sections);
  if (st == ZT_OK) st = zti_read_sections(root ? root : sections, l->tok);
  json_decref(sections);
  ZT_TRY(st);
  ZT_TRY(read_settings(l));
  return zti_tokenizer_finish(l->tok);
}

static zt_status load_tokenizer_json(loader *l, const char *path) {
  json_t *root = NULL;
  ZT_TRY(zt_json_load(path, &root));
  zt_status st = read_model(json_object_get(root, "model"), l->tok);
  if (st == ZT_OK) st = read_rest(l, root);
  json_decref(root);
  return zt_wrap(st, "%s", path);
}

static zt_status load_pair(loader *l, const char *vocab_name, const char *merges_name, bool *found) {
  char vocab[PATH_MAX], merges[PATH_MAX];
  ZT_TRY(join(vocab, l->folder, vocab_name));
  ZT_TRY(join(merges, l->folder, merges_name));
  *found = zt_file_exists(vocab) && zt_file_exists(merges);
  if (!*found) return ZT_OK;
  ZT_TRY(load_vocab_and_merges(l, vocab, merges));
  return zt_wrap(read_rest(l, NULL), "%s", l->folder);
}

static zt_status load_folder(loader *l) {
  char path[PATH_MAX];
  bool found = false;
  ZT_TRY(load_companions(l));
  ZT_TRY(find_class(l));
  ZT_TRY(join(path, l->folder, "tokenizer.json"));
  if (zt_file_exists(path)) return load_tokenizer_json(l, path);
  ZT_TRY(load_pair(l, "vocab.json", "merges.txt", &found));
  if (!found) ZT_TRY(load_pair(l, "encoder.json", "vocab.bpe", &found));
  return found ? ZT_OK
               : zt_fail(ZT_IO,
                         "%s: no tokenizer there (tokenizer.json, vocab.json and merges.txt, or encoder.json "
                         "and vocab.bpe)",
                         l->folder);
}

zt_status zt_tokenizer_load(const char *path, zt_tokenizer **out) {
  struct stat info;
  loader l = {.folder = path};
  *out = NULL;
  bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
  if (!is_folder) l.class = &classes[0];
  ZT_TRY(zti_tokenizer_new(&l.tok));
  zt_status st = is_folder ? load_folder(&l) : load_tokenizer_json(&l, path);
  json_decref(l.config);
  json_decref(l.special_map);
  json_decref(l.added_tokens);
  json_decref(l.model_config);
  if (st == ZT_OK)
    *out = l.tok;
  else
    zt_tokenizer_free(l.tok);
  return st;
}
