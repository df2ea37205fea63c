/* corpus.h - text files as one mapped array of token blocks.
** Tokenised once, as Hugging Face's causal-LM script does: line by line (the line end included, no special tokens); the
** ids of 1,000 lines at a time are joined and cut into blocks, what is left of each thousand is dropped. The ids are kept
** in a cache file, keyed by the text's path, size and time, the tokenizer's hash, and this format's version; blocks are
** cut when it is opened, so one cache serves every block size. */
#ifndef zt_corpus_h
#define zt_corpus_h

#include "core/io/file.h"
#include "core/text/tokenizer.h"

typedef struct zt_corpus zt_corpus;

/* 'cache_folder' NULL: $XDG_CACHE_HOME/ztrain or ~/.cache/ztrain; where it cannot be written the ids stay in memory.
** An empty file, or one too short for a single block, raises. Encodes on all cores; processes that open the same text at
** once wait for the first, and read what it wrote. */
ZT_API zt_status zt_corpus_open(const char *text_path, const zt_tokenizer *tok, size_t block_size,
                                const char *cache_folder, zt_corpus **out);
ZT_API void zt_corpus_close(zt_corpus *corpus); /* NULL ok */
ZT_API size_t zt_corpus_block_count(const zt_corpus *corpus);
ZT_API size_t zt_corpus_token_count(const zt_corpus *corpus); /* in blocks, dropped ones not counted */
/* Copies block i (from 0) to ids[block_size]. */
ZT_API zt_status zt_corpus_get_block(const zt_corpus *corpus, size_t i, int64_t *ids);

#endif
