/* ops.h - every differentiable operation, as its users see it: first the context, then outputs (owned by the caller),
** inputs (borrowed), scalars. Dimensions count from 0, negative ones from the end. Shapes broadcast as in NumPy where a
** line says "broadcasts". Every op takes float32, float64, bfloat16 and float16 and wants its inputs in one dtype,
** unless its line says otherwise; masks are uint8 (0 = out), indices int64. Empty tensors are accepted everywhere. */
#ifndef zt_ops_h
#define zt_ops_h

#include "core/tensor/op.h"

/* clang-format off */
/* R(name): the op table; tests walk it, and each row has a gradient check or says that it has no gradient. */
#define ZT_OPS(R)                                                                                              \
  /* op_elementwise.c */                                                                                       \
  R(add) R(sub) R(mul) R(div) R(pow) R(neg) R(exp) R(log) R(sqrt) R(rsqrt) R(tanh) R(sigmoid) R(relu) R(gelu)  \
  R(gelu_tanh) R(silu) R(clamp) R(affine) R(pow_scalar) R(compare) R(where) R(masked_fill)                     \
  /* op_reduce.c */                                                                                            \
  R(sum) R(mean) R(max) R(min) R(var) R(norm) R(argmax) R(topk) R(logsumexp)                                   \
  /* op_matmul.c */                                                                                            \
  R(matmul) R(linear)                                                                                          \
  /* op_norm.c, op_softmax.c, op_dropout.c */                                                                  \
  R(layer_norm) R(residual_layer_norm) R(softmax) R(log_softmax) R(dropout)                                    \
  /* op_attention.c */                                                                                         \
  R(attention) R(attention_qkv)                                                                                \
  /* op_loss.c */                                                                                              \
  R(cross_entropy) R(linear_cross_entropy) R(mse)                                                              \
  /* op_conv.c */                                                                                              \
  R(conv1d)                                                                                                    \
  /* op_index.c */                                                                                             \
  R(embedding) R(gather) R(index_select) R(scatter_add)                                                        \
  /* op_shape.c */                                                                                             \
  R(cat) R(reshape) R(transpose) R(permute) R(narrow) R(expand) R(copy) R(cast)
/* clang-format on */

ZT_OPS(ZT_OP_DECLARE)
ZT_API extern const zt_op *const zt_op_table[]; /* in that order, NULL at the end */

/* --- op_elementwise.c: binary ones broadcast, and give float32 for two different dtypes of float32, bfloat16 and float16.
** add, sub, mul, div, pow also take two int64 or int32 tensors (no gradient) */
ZT_API zt_status zt_add(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
ZT_API zt_status zt_sub(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
ZT_API zt_status zt_mul(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
ZT_API zt_status zt_div(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
ZT_API zt_status zt_pow(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
ZT_API zt_status zt_neg(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_exp(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_log_(zt_ctx *c, zt_tensor **y, zt_tensor *x); /* natural logarithm; zt_log is the notice */
ZT_API zt_status zt_sqrt(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_rsqrt(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_tanh(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_sigmoid(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_relu(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_gelu(zt_ctx *c, zt_tensor **y, zt_tensor *x);      /* by erf */
ZT_API zt_status zt_gelu_tanh(zt_ctx *c, zt_tensor **y, zt_tensor *x); /* Hugging Face's gelu_new */
ZT_API zt_status zt_silu(zt_ctx *c, zt_tensor **y, zt_tensor *x);
ZT_API zt_status zt_clamp(zt_ctx *c, zt_tensor **y, zt_tensor *x, double low, double high);
ZT_API zt_status zt_affine(zt_ctx *c, zt_tensor **y, zt_tensor *x, double factor, double shift); /* also int64, int32 */
ZT_API zt_status zt_pow_scalar(zt_ctx *c, zt_tensor **y, zt_tensor *x, double exponent);
ZT_API zt_status zt_compare_op(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b,
                               zt_compare fn); /* any dtype -> uint8 */
ZT_API zt_status zt_where(zt_ctx *c, zt_tensor **y, zt_tensor *cond, zt_tensor *a,
                          zt_tensor *b); /* broadcasts; any dtype */
/* x where mask is 0, value elsewhere (as PyTorch's masked_fill); mask broadcasts to x; any dtype. */
ZT_API zt_status zt_masked_fill(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *mask, double value);

/* --- op_reduce.c: 'dim' is one dimension, or ZT_ALL_DIMS; keepdim keeps it as 1. max and min of nothing raise; the mean
** of nothing is NaN. The gradient of max and min goes to the first place of the extreme; index (NULL ok) gets that place.
** sum, max, min, argmax also take int64 */
ZT_API zt_status zt_sum(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim);
ZT_API zt_status zt_mean(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim);
ZT_API zt_status zt_max(zt_ctx *c, zt_tensor **y, zt_tensor **index, zt_tensor *x, int dim, bool keepdim);
ZT_API zt_status zt_min(zt_ctx *c, zt_tensor **y, zt_tensor **index, zt_tensor *x, int dim, bool keepdim);
ZT_API zt_status zt_var(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim,
                        int correction); /* torch.var: 1 */
ZT_API zt_status zt_norm(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim,
                         bool keepdim); /* L2; gradient 0 where it is 0 */
ZT_API zt_status zt_argmax(zt_ctx *c, zt_tensor **index, zt_tensor *x, int dim, bool keepdim);
ZT_API zt_status zt_topk(zt_ctx *c, zt_tensor **values, zt_tensor **index, zt_tensor *x, int64_t k, int dim,
                         bool largest);
ZT_API zt_status zt_logsumexp(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, bool keepdim);

/* --- op_matmul.c */
/* (..., m, k) x (..., k, n), batch dimensions broadcast; a vector on either side as in torch.matmul. Transposed views
** are used as they lie, without a copy. */
ZT_API zt_status zt_matmul(zt_ctx *c, zt_tensor **y, zt_tensor *a, zt_tensor *b);
/* y = act(x w^T + b): x (..., in), w (out, in), or (in, out) with 'in_out' (Conv1D's layout); b (out) or NULL. */
ZT_API zt_status zt_linear(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *w, zt_tensor *b, zt_act act, bool in_out);

/* --- op_norm.c: over the last dimension; w, b (cols) or NULL */
ZT_API zt_status zt_layer_norm(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *w, zt_tensor *b, double eps);
/* sum = x + residual; y = layer_norm(sum). Both outputs carry gradients. */
ZT_API zt_status zt_residual_layer_norm(zt_ctx *c, zt_tensor **y, zt_tensor **sum, zt_tensor *x, zt_tensor *residual,
                                        zt_tensor *w, zt_tensor *b, double eps);

/* --- op_softmax.c: any dimension; mask (NULL ok) broadcasts to x: 0 takes no part, and gets 0 (log: -inf) */
ZT_API zt_status zt_softmax(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *mask, int dim);
ZT_API zt_status zt_log_softmax(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *mask, int dim);

/* --- op_dropout.c: counts one random call; dimension 0 is the sample. p 0: x itself. */
ZT_API zt_status zt_dropout(zt_ctx *c, zt_tensor **y, zt_tensor *x, double p);

/* --- op_attention.c: see zt_attention in kernels.h. q (B, Tq, H, D), k and v (B, Tk, H, D), any strides with D
** contiguous; y (B, Tq, H, D) contiguous. key_mask uint8 (B, Tk); bias broadcasts to (B, H, Tq, Tk), with gradient.
** NULL ok for both. Causal is aligned at the end: query i sees keys up to i + Tk - Tq. */
typedef struct zt_attention_options {
  double scale; /* 0: 1 / sqrt(D) */
  bool causal;
  double dropout; /* counts one random call where not 0 */
} zt_attention_options;
ZT_API zt_status zt_attention_op(zt_ctx *c, zt_tensor **y, zt_tensor *q, zt_tensor *k, zt_tensor *v,
                                 zt_tensor *key_mask, zt_tensor *bias, const zt_attention_options *o);
/* The same from one packed projection qkv (B, T, 3 * H * D): one gradient, no copies. y (B, T, H * D). */
ZT_API zt_status zt_attention_qkv(zt_ctx *c, zt_tensor **y, zt_tensor *qkv, int64_t n_head, zt_tensor *key_mask,
                                  zt_tensor *bias, const zt_attention_options *o);

/* --- op_loss.c */
/* Mean over the rows whose label is not ignore_index; 0 where there is none. logits (..., V), labels int64 (...). A label
** outside [0, V) raises with its position. count (NULL ok): int64 scalar, the rows that the mean is over. loss is stat
** dtype (float32 for 16-bit logits). */
ZT_API zt_status zt_cross_entropy(zt_ctx *c, zt_tensor **loss, zt_tensor **count, zt_tensor *logits, zt_tensor *labels,
                                  int64_t ignore_index, double smoothing);
/* cross_entropy(x w^T, labels) without ever holding all logits: rows go in chunks, and where a gradient is wanted forward
** makes the unscaled gradients of x and w while it has a chunk. x (..., C), w (V, C). */
ZT_API zt_status zt_linear_cross_entropy(zt_ctx *c, zt_tensor **loss, zt_tensor **count, zt_tensor *x, zt_tensor *w,
                                         zt_tensor *labels, int64_t ignore_index, double smoothing);
/* Mean of squares, same shapes, stat dtype; 0 where there are none (torch: NaN), so that a batch of no rows is harmless. */
ZT_API zt_status zt_mse(zt_ctx *c, zt_tensor **loss, zt_tensor *x, zt_tensor *target);

/* --- op_conv.c: x (B, T, C_in) channels last, w (C_out, C_in, width) as in torch.nn.Conv1d, b (C_out) or NULL;
** y (B, T_out, C_out), T_out = (T + 2 pad - dilation (width - 1) - 1) / stride + 1 */
ZT_API zt_status zt_conv1d(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_tensor *w, zt_tensor *b, int64_t stride,
                           int64_t pad, int64_t dilation);

/* --- op_index.c: an index out of range raises with its position and the limit */
ZT_API zt_status zt_embedding(zt_ctx *c, zt_tensor **y, zt_tensor *w,
                              zt_tensor *ids); /* w (V, C), ids (...) -> (..., C) */
ZT_API zt_status zt_gather(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, zt_tensor *index);       /* torch.gather */
ZT_API zt_status zt_index_select(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, zt_tensor *index); /* index (n) */
/* x with src added at index along dim (torch.scatter_add); gradients to x and src. */
ZT_API zt_status zt_scatter_add(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, zt_tensor *index, zt_tensor *src);

/* --- op_shape.c: any dtype */
ZT_API zt_status zt_cat(zt_ctx *c, zt_tensor **y, zt_tensor *const x[], int n, int dim); /* any number of tensors */
ZT_API zt_status zt_stack(zt_ctx *c, zt_tensor **y, zt_tensor *const x[], int n, int dim);
/* Parts of 'sizes' along dim, which sum to its length; out[i] are owned views. */
ZT_API zt_status zt_split(zt_ctx *c, zt_tensor *out[], zt_tensor *x, const int64_t *sizes, int n, int dim);
ZT_API zt_status zt_reshape(zt_ctx *c, zt_tensor **y, zt_tensor *x, int ndim,
                            const int64_t *shape); /* one -1; view if it can */
ZT_API zt_status zt_transpose(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim1, int dim2);
ZT_API zt_status zt_permute(zt_ctx *c, zt_tensor **y, zt_tensor *x, const int *order);
ZT_API zt_status zt_narrow(zt_ctx *c, zt_tensor **y, zt_tensor *x, int dim, int64_t start, int64_t length);
ZT_API zt_status zt_expand(zt_ctx *c, zt_tensor **y, zt_tensor *x, int ndim,
                           const int64_t *shape);                                 /* a view, stride 0 */
ZT_API zt_status zt_copy(zt_ctx *c, zt_tensor **y, zt_tensor *x);                 /* a contiguous copy */
ZT_API zt_status zt_cast(zt_ctx *c, zt_tensor **y, zt_tensor *x, zt_dtype dtype); /* x itself where it has that dtype */

/* --- sampling and norms, without gradient (op_sample.c) */
/* logits (rows, V) -> ids (rows): see the kernel 'sample'. Counts one random call where temperature > 0. */
ZT_API zt_status zt_sample(zt_ctx *c, zt_tensor **ids, zt_tensor *logits, double temperature, int64_t top_k,
                           double top_p);
/* The L2 norm of all of them together, by exact accumulation; NaN where one has a non-finite element, and then
** *bad (NULL ok) is the first such tensor's number and *bad_at its element, else -1. */
ZT_API zt_status zt_global_norm(zt_ctx *c, double *norm, int64_t *bad, int64_t *bad_at, zt_tensor *const x[], int n);

#endif
