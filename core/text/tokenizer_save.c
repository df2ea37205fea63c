/* tokenizer_save.c - a tokenizer as the files that transformers and tokenizers open. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/io/file.h"
#include "core/text/pipeline.h"

static const char *text_of(const zt_tokenizer *tok, int64_t id) { return (const char *)tok->vocab.tokens[id].text; }

static zt_status add_string(zt_buffer *b, const char *text) { return zt_json_add_string(b, text, strlen(text)); }

static const char *boolean(bool value) { return value ? "true" : "false"; }

/* --- the model */

/* {"token": id, ...} by id; 'space' comes before each token. */
static zt_status add_vocab(zt_buffer *b, const zti_vocab *v, const char *space) {
  const char *comma = "";
  ZT_TRY(zt_buffer_addf(b, "{"));
  for (size_t id = 0; id < v->n_tokens; id++) {
    const zti_token *t = &v->tokens[id];
    if (!t->of_model) continue;
    ZT_TRY(zt_buffer_addf(b, "%s%s", comma, space));
    ZT_TRY(zt_json_add_string(b, (const char *)t->text, t->ntext));
    ZT_TRY(zt_buffer_addf(b, ": %zu", id));
    comma = ",";
  }
  return zt_buffer_addf(b, "}");
}

/* "left right" lines. A token with a space is not of the byte-level alphabet and could be told by no reader. */
static zt_status add_merge_lines(zt_buffer *b, const zt_tokenizer *tok) {
  for (size_t i = 0; i < tok->bpe.n_merges; i++) {
    const char *left = text_of(tok, tok->bpe.merges[i].left), *right = text_of(tok, tok->bpe.merges[i].right);
    if (strpbrk(left, " \r\n") || strpbrk(right, " \r\n"))
      return zt_fail(ZT_FORMAT, "merge %zu ('%.60s' and '%.60s') has a space within a token: it can not be written",
                     i + 1, left, right);
    ZT_TRY(zt_buffer_add(b, left, strlen(left)));
    ZT_TRY(zt_buffer_add(b, " ", 1));
    ZT_TRY(zt_buffer_add(b, right, strlen(right)));
    ZT_TRY(zt_buffer_add(b, "\n", 1));
  }
  return ZT_OK;
}

static zt_status add_merge_list(zt_buffer *b, const zt_buffer *lines) {
  const char *line = lines->data, *end = line + lines->nbytes;
  ZT_TRY(zt_buffer_addf(b, "["));
  for (const char *stop; line && line < end; line = stop + 1) {
    stop = memchr(line, '\n', (size_t)(end - line));
    ZT_TRY(zt_buffer_addf(b, line == lines->data ? "\n      " : ",\n      "));
    ZT_TRY(zt_json_add_string(b, line, (size_t)(stop - line)));
  }
  return zt_buffer_addf(b, "]");
}

static zt_status add_model(zt_buffer *b, const zt_tokenizer *tok, const zt_buffer *merge_lines) {
  ZT_TRY(zt_buffer_addf(b, "{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": "));
  ZT_TRY(tok->bpe.unk == ZTI_NONE ? zt_buffer_addf(b, "null") : add_string(b, text_of(tok, tok->bpe.unk)));
  ZT_TRY(zt_buffer_addf(
      b,
      ",\n    \"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\",\n"
      "    \"fuse_unk\": %s,\n    \"byte_fallback\": false,\n    \"ignore_merges\": %s,\n    \"vocab\": ",
      boolean(tok->bpe.fuse_unk), boolean(tok->bpe.ignore_merges)));
  ZT_TRY(add_vocab(b, &tok->vocab, "\n      "));
  ZT_TRY(zt_buffer_addf(b, ",\n    \"merges\": "));
  ZT_TRY(add_merge_list(b, merge_lines));
  return zt_buffer_addf(b, "\n  }");
}

/* --- added tokens */

/* The members of an added token's object, but for its id. */
static zt_status add_added_token(zt_buffer *b, const zt_tokenizer *tok, const zti_added_token *t) {
  ZT_TRY(zt_buffer_addf(b, "\"content\": "));
  ZT_TRY(add_string(b, text_of(tok, t->id)));
  return zt_buffer_addf(
      b, ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, \"special\": %s}",
      boolean(t->single_word), boolean(t->lstrip), boolean(t->rstrip), boolean(t->normalized), boolean(t->special));
}

/* By id, as tokenizers wants them; each between its id and '}'. */
static zt_status add_added_tokens(zt_buffer *b, const zt_tokenizer *tok, const char *before_id, const char *after_id) {
  const char *comma = "";
  for (size_t id = 0; id < tok->vocab.n_tokens; id++) {
    const zti_added_token *t = zti_added_get(&tok->added, (int64_t)id);
    if (!t) continue;
    ZT_TRY(zt_buffer_addf(b, "%s\n    %s%zu%s", comma, before_id, id, after_id));
    ZT_TRY(add_added_token(b, tok, t));
    comma = ",";
  }
  return ZT_OK;
}

/* --- the files */

static zt_status make_tokenizer_json(zt_buffer *b, const zt_tokenizer *tok, const zt_buffer *merge_lines) {
  ZT_TRY(zt_buffer_addf(b,
                        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                        "  \"added_tokens\": ["));
  ZT_TRY(add_added_tokens(b, tok, "{\"id\": ", ", "));
  ZT_TRY(zt_buffer_addf(b, "],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n", tok->pre_tokenizer));
  ZT_TRY(zt_buffer_addf(b, "  \"post_processor\": %s,\n", tok->post_processor ? tok->post_processor : "null"));
  ZT_TRY(zt_buffer_addf(b, "  \"decoder\": %s,\n  \"model\": ", tok->decoder));
  ZT_TRY(add_model(b, tok, merge_lines));
  return zt_buffer_addf(b, "\n}\n");
}

static zt_status add_roles(zt_buffer *b, const zt_tokenizer *tok, const char *comma) {
  for (int i = 0; i < ZTI_N_ROLES; i++) {
    if (tok->special[i] < 0) continue;
    ZT_TRY(zt_buffer_addf(b, "%s\n  \"%s_token\": ", comma, zti_role_names[i]));
    ZT_TRY(add_string(b, text_of(tok, tok->special[i])));
    comma = ",";
  }
  return ZT_OK;
}

static zt_status make_special_map(zt_buffer *b, const zt_tokenizer *tok) {
  ZT_TRY(zt_buffer_addf(b, "{"));
  ZT_TRY(add_roles(b, tok, ""));
  return zt_buffer_addf(b, "\n}\n");
}

/* What this file says of the tokens and roles. GPT2Tokenizer adds its own <|endoftext|> where that is missing, the
** general class adds nothing. */
static zt_status make_own_config(zt_buffer *b, const zt_tokenizer *tok) {
  int64_t eot = zt_tokenizer_token_to_id(tok, "<|endoftext|>");
  bool like_gpt2 = eot >= 0 && tok->special[ZTI_ROLE_eos] == eot && tok->special[ZTI_ROLE_bos] == eot;
  ZT_TRY(zt_buffer_addf(b, "{\n  \"added_tokens_decoder\": {"));
  ZT_TRY(add_added_tokens(b, tok, "\"", "\": {"));
  ZT_TRY(zt_buffer_addf(b, "}"));
  ZT_TRY(add_roles(b, tok, ","));
  if (!tok->config)
    ZT_TRY(zt_buffer_addf(b, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"%s\"",
                          like_gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"));
  return zt_buffer_addf(b, "\n}\n");
}

static int add_text(const char *data, size_t nbytes, void *buffer) {
  return zt_buffer_add(buffer, data, nbytes) == ZT_OK ? 0 : -1;
}

/* What was loaded, with the tokens and roles as they are. */
static zt_status make_config(zt_buffer *b, const zt_tokenizer *tok) {
  json_t *loaded = NULL, *own = NULL;
  zt_buffer text = {0};
  zt_status st = make_own_config(tok->config ? &text : b, tok);
  if (st != ZT_OK || !tok->config) goto done;
  ZT_TRY_GOTO(zt_json_parse("tokenizer_config.json", tok->config, strlen(tok->config), &loaded), done);
  ZT_TRY_GOTO(zt_json_parse("tokenizer_config.json", text.data, text.nbytes, &own), done);
  bool good = json_object_update(loaded, own) == 0 && json_dump_callback(loaded, add_text, b, JSON_INDENT(2)) == 0;
  st = good ? zt_buffer_add(b, "\n", 1) : zt_fail(ZT_NOMEM, "host memory: none to be had to write JSON");
done:
  zt_buffer_clear(&text);
  json_decref(loaded);
  json_decref(own);
  return st;
}

static zt_status make_vocab_json(zt_buffer *b, const zt_tokenizer *tok) {
  ZT_TRY(add_vocab(b, &tok->vocab, ""));
  return zt_buffer_addf(b, "\n");
}

static zt_status make_merges_txt(zt_buffer *b, const zt_buffer *merge_lines) {
  ZT_TRY(zt_buffer_addf(b, "#version: 0.2\n"));
  return merge_lines->nbytes ? zt_buffer_add(b, merge_lines->data, merge_lines->nbytes) : ZT_OK;
}

/* 'st' is how making 'b' went. */
static zt_status write_made(zt_status st, const char *folder, const char *name, zt_buffer *b) {
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s/%s", folder, name);
  if (st == ZT_OK && (n < 0 || n >= PATH_MAX)) st = zt_fail(ZT_IO, "%.100s...: the path is too long", folder);
  if (st == ZT_OK)
    st = zt_file_write(path, b->data, b->nbytes);
  else
    zt_wrap(st, "%s/%s", folder, name);
  zt_buffer_clear(b);
  return st;
}

zt_status zt_tokenizer_save(const zt_tokenizer *tok, const char *folder) {
  zt_buffer b = {0}, lines = {0};
  ZT_TRY(zt_make_dirs(folder));
  zt_status st = add_merge_lines(&lines, tok);
  if (st == ZT_OK) st = write_made(make_tokenizer_json(&b, tok, &lines), folder, "tokenizer.json", &b);
  if (st == ZT_OK) st = write_made(make_vocab_json(&b, tok), folder, "vocab.json", &b);
  if (st == ZT_OK) st = write_made(make_merges_txt(&b, &lines), folder, "merges.txt", &b);
  if (st == ZT_OK) st = write_made(make_config(&b, tok), folder, "tokenizer_config.json", &b);
  if (st == ZT_OK) st = write_made(make_special_map(&b, tok), folder, "special_tokens_map.json", &b);
  zt_buffer_clear(&lines);
  return st;
}
