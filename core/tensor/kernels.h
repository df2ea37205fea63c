/* kernels.h - the one list of kernels. A backend implements every row; the struct, the backends' tables, their
** prototypes and the tests are made from it.
**
** Rules for all rows. The stream comes first, then dtypes, outputs, inputs, scalars, counts. Memory is contiguous in
** row-major order unless a row says otherwise (a zt_loop, leading dimensions). Outputs are written whole, never read,
** unless a row says "adds to". Counts may be 0: then nothing is touched. Arithmetic on float32 and 16-bit types is
** float32, on float64 float64; "stat" means zt_dtype_stat(t). Results are the same on every run. Kernels never allocate:
** rows in ZT_KERNEL_WORKSPACES name the bytes they need, and core passes pool memory. Shapes were checked by the op. */
#ifndef zt_kernels_h
#define zt_kernels_h

#include "core/base/dtype.h"
#include "core/base/exact.h"
#include "core/base/rng.h"
#include "core/device/device.h"

#define ZT_MAX_DIM 6

/* An elementwise loop over up to four operands (0 is the output); strides in elements, 0 where an operand is
** broadcast. Dimensions have been merged where they could be; ndim 0 is a single element. */
typedef struct zt_loop {
  int ndim;
  int64_t shape[ZT_MAX_DIM];
  int64_t stride[4][ZT_MAX_DIM];
} zt_loop;

/* clang-format off */
/* X(constant, name). y = f(x; p0, p1). */
#define ZT_UNARY(X)                                                                          \
  X(NEG, neg) X(EXP, exp) X(LOG, log) X(SQRT, sqrt) X(RSQRT, rsqrt) X(TANH, tanh)            \
  X(SIGMOID, sigmoid) X(RELU, relu) X(GELU, gelu) X(GELU_TANH, gelu_tanh) X(SILU, silu)      \
  X(CLAMP, clamp)  /* to [p0, p1]; gradient 1 on the bounds */                               \
  X(AFFINE, affine) /* p0 * x + p1 */                                                        \
  X(POWS, pow_scalar) /* x ^ p0 */
/* clang-format on */
typedef enum zt_unary {
#define ZT_ENUM(id, name) ZT_UNARY_##id,
  ZT_UNARY(ZT_ENUM) ZT_N_UNARY
} zt_unary;

#define ZT_BINARY(X) X(ADD, add) X(SUB, sub) X(MUL, mul) X(DIV, div) X(POW, pow)
typedef enum zt_binary {
#define ZT_ENUM_B(id, name) ZT_BINARY_##id,
  ZT_BINARY(ZT_ENUM_B) ZT_N_BINARY
} zt_binary;

#define ZT_COMPARE(X) X(EQ, eq) X(NE, ne) X(LT, lt) X(LE, le) X(GT, gt) X(GE, ge)
typedef enum zt_compare {
#define ZT_ENUM_C(id, name) ZT_COMPARE_##id,
  ZT_COMPARE(ZT_ENUM_C) ZT_N_COMPARE
} zt_compare;

#define ZT_REDUCE(X) X(SUM, sum) X(MEAN, mean) X(MAX, max) X(MIN, min) X(LOGSUMEXP, logsumexp)
typedef enum zt_reduce {
#define ZT_ENUM_R(id, name) ZT_REDUCE_##id,
  ZT_REDUCE(ZT_ENUM_R) ZT_N_REDUCE
} zt_reduce;

/* Activations that a linear layer can fuse. */
typedef enum zt_act { ZT_ACT_NONE, ZT_ACT_RELU, ZT_ACT_GELU, ZT_ACT_GELU_TANH, ZT_ACT_SILU, ZT_ACT_TANH } zt_act;

/* Products: c[b] = alpha * op(a[b]) op(b[b]) + beta * c[b], b = 0..batch-1; op(a) is (m, k), op(b) is (k, n), op
** transposes where trans_* is set; ld* are row strides in elements of the memory as it lies; stride_* between batches,
** 0 to use one matrix for all. With beta 0, c is not read. */
typedef struct zt_gemm {
  bool trans_a, trans_b;
  int64_t m, n, k, batch;
  int64_t lda, ldb, ldc;
  int64_t stride_a, stride_b, stride_c;
  double alpha, beta;
} zt_gemm;

/* Scaled dot-product attention: out = dropout(softmax(scale * q k^T + bias, masked)) v, by batch b and head h.
** q, k, v, out (and their gradients) are 4-d views (B, T, H, D): their strides in elements for b, t, h are given (that of
** t is D or more), D has stride 1. Masked: key j of batch b where key_mask[b * n_k + j] is 0; with 'causal', keys
** j > i + (n_k - n_q). A query with no key left gives zeros. bias (dtype t) is read at b * bias_stride[0] + h * [1] +
** i * [2] + j * [3] (0 = broadcast). lse (stat) is (B, H, Tq). */
typedef struct zt_attention {
  int64_t n_batch, n_head, n_q, n_k, head_dim;
  int64_t q_stride[3], k_stride[3], v_stride[3], out_stride[3]; /* b, t, h */
  int64_t bias_stride[4];
  double scale;
  bool causal;
  double dropout; /* 0: none. Row b is a sample; index within it (h * Tq + i) * Tk + j */
  zt_rng_key key;
} zt_attention;

/* One step of an optimizer over a span. Constants were computed in double, once a step; p, m, v in 'state' dtype
** (float32 or float64), grad in its own. grad is multiplied by grad_scale first (clipping, unscaling).
** adam (decoupled = AdamW): torch.optim.Adam/AdamW; step_size = lr / (1 - beta1^t), bias2_sqrt = sqrt(1 - beta2^t).
** Each operation of the formula rounds once, none is fused, in PyTorch's order: all devices give the same bits.
** sgd: torch.optim.SGD; the momentum buffer starts as the first gradient ('first'). lion: arXiv 2302.06675. */
typedef struct zt_optim_step {
  double grad_scale, lr, weight_decay;
  double beta1, beta2, eps, step_size, bias2_sqrt;
  bool decoupled;
  double momentum, dampening;
  bool nesterov, first;
} zt_optim_step;

/* clang-format off */
/* K(name, parameters). Names of tensors follow the math: y = f(x), gy is the gradient that arrives at y. */
#define ZT_KERNELS(K)                                                                                                   \
  /* --- memory */                                                                                                      \
  K(fill, (zt_stream *s, zt_dtype t, void *y, double value, size_t count))                                              \
  K(arange, (zt_stream *s, zt_dtype t, void *y, double start, double step, size_t count))                               \
  /* y[loop 0] = x[loop 1]; any dtype of that size */                                                                   \
  K(copy, (zt_stream *s, zt_dtype t, void *y, const void *x, const zt_loop *loop))                                      \
  /* floats to integers truncate; to uint8: wraps */                                                                    \
  K(cast, (zt_stream *s, zt_dtype ty, zt_dtype tx, void *y, const void *x, size_t count))                               \
  /* --- elementwise */                                                                                                 \
  K(unary, (zt_stream *s, zt_unary fn, zt_dtype t, void *y, const void *x, double p0, double p1, size_t count))         \
  /* gx = gy * f'(x); x or y may be NULL where f' does not need it (zt_unary_needs). gx may be gy */                    \
  K(unary_bwd, (zt_stream *s, zt_unary fn, zt_dtype t, void *gx, const void *gy, const void *x, const void *y,          \
                double p0, double p1, size_t count))                                                                    \
  /* y may be a or b where that one is not broadcast; integers too (div truncates, pow by squaring) */                  \
  K(binary, (zt_stream *s, zt_binary fn, zt_dtype t, void *y, const void *a, const void *b, const zt_loop *loop))       \
  K(compare, (zt_stream *s, zt_compare fn, zt_dtype t, uint8_t *y, const void *a, const void *b, const zt_loop *loop))  \
  K(where, (zt_stream *s, zt_dtype t, void *y, const uint8_t *cond, const void *a, const void *b,                       \
            const zt_loop *loop)) /* loop operands: y, cond, a, b */                                                    \
  /* --- reductions over the middle of (outer, n, inner); index (int64, NULL ok) is the first place of max and min */   \
  K(reduce, (zt_stream *s, zt_reduce fn, zt_dtype t, void *y, int64_t *index, const void *x, size_t outer, size_t n,    \
             size_t inner)) /* n 0: sum 0, mean NaN, logsumexp -inf; max and min do not get it */                       \
  /* squares of x, summed in float64 over blocks of 128 elements (lane j of 16 adds elements j, j + 16, ...; then the   \
  ** upper half of the lanes is added to the lower, four times), added to the accumulator; *first_bad (host) is the     \
  ** index of the first non-finite element, or count */                                                                 \
  K(sum_squares, (zt_stream *s, zt_dtype t, zt_exact *sum, size_t *first_bad, const void *x, size_t count))             \
  K(topk, (zt_stream *s, zt_dtype t, void *values, int64_t *index, const void *x, size_t rows, size_t cols, size_t k,   \
           bool largest)) /* sorted; ties: lower index first; NaN counts as largest */                                  \
  /* --- rows */                                                                                                        \
  /* mask NULL or (rows, cols): 0 takes no part and gets 0 (log: -inf); a row with none left gets zeros (log: -inf) */  \
  K(softmax, (zt_stream *s, zt_dtype t, void *y, const void *x, const uint8_t *mask, bool log, size_t rows,             \
              size_t cols))                                                                                             \
  K(softmax_bwd, (zt_stream *s, zt_dtype t, void *gx, const void *gy, const void *y, bool log, size_t rows,             \
                  size_t cols)) /* where log y is -inf the gradient is 0 */                                             \
  /* h = x + residual (written to 'sum'; both NULL: h = x); y = (h - mean) * rstd * w + b; w, b NULL ok; mean, rstd:    \
  ** stat */                                                                                                            \
  K(layer_norm, (zt_stream *s, zt_dtype t, void *y, void *sum, void *mean, void *rstd, const void *x,                   \
                 const void *residual, const void *w, const void *b, double eps, size_t rows, size_t cols))             \
  /* gx = gradient of h, plus gsum where not NULL (what arrives at 'sum'); gw, gb NULL ok; x is h */                    \
  K(layer_norm_bwd, (zt_stream *s, zt_dtype t, void *gx, void *gw, void *gb, const void *gy, const void *gsum,          \
                     const void *x, const void *mean, const void *rstd, const void *w, size_t rows, size_t cols,        \
                     void *workspace))                                                                                  \
  K(gemm, (zt_stream *s, zt_dtype t, void *c, const void *a, const void *b, const zt_gemm *g, void *workspace))         \
  /* pre += bias (NULL ok) in place, y = act(pre); y may be pre (then the sum is not kept) */                           \
  K(bias_act, (zt_stream *s, zt_dtype t, void *y, void *pre, const void *bias, zt_act act, size_t rows, size_t cols))   \
  /* gpre = gy * act'(pre) (gpre NULL or gy where act is none); gbias (NULL ok) = column sums of gpre */                \
  K(bias_act_bwd, (zt_stream *s, zt_dtype t, void *gpre, void *gbias, const void *gy, const void *pre, zt_act act,      \
                   size_t rows, size_t cols, void *workspace))                                                          \
  /* y[i] = dropped ? 0 : x[i] / (1 - p); the same call with gy gives gx. Row r is sample r of the key; y may be x */   \
  K(dropout, (zt_stream *s, zt_dtype t, void *y, const void *x, double p, const zt_rng_key *key, size_t rows,           \
              size_t cols))                                                                                             \
  /* Random fills: all of y is sample first_sample of the key. With w[i] the word of element i (rng.h), normal pairs    \
  ** elements i = 2j and i + 1 (Box-Muller): radius = sqrt(-2 log(w[i] / 2^32 + 1 / 2^33)), angle = 2 pi w[i+1] / 2^32; \
  ** element i is mean + std * radius * cos(angle), i + 1 the same with sin. float64 computes it in float64 */          \
  K(random_normal, (zt_stream *s, zt_dtype t, void *y, double mean, double std, const zt_rng_key *key, size_t first,    \
                    size_t count)) /* y is elements first, first + 1, ... of it; first is a multiple of 128 */           \
  /* low + (high - low) * u, and below high (before rounding to 16 bits); u = w[i] / 2^32, for float64 with all bits,   \
  ** else with the upper 24 */                                                                                          \
  K(random_uniform, (zt_stream *s, zt_dtype t, void *y, double low, double high, const zt_rng_key *key, size_t first,   \
                     size_t count)) /* first as above */                                                                \
  /* --- attention; bias, key_mask, gbias NULL ok */                                                                    \
  K(attention, (zt_stream *s, zt_dtype t, void *out, void *lse, const void *q, const void *k, const void *v,            \
                const uint8_t *key_mask, const void *bias, const zt_attention *a, void *workspace))                     \
  /* gq, gk, gv have the strides of q, k, v; gout those of out; gbias is whole: (B, H, Tq, Tk) contiguous */            \
  K(attention_bwd, (zt_stream *s, zt_dtype t, void *gq, void *gk, void *gv, void *gbias, const void *gout,              \
                    const void *q, const void *k, const void *v, const void *out, const void *lse,                      \
                    const uint8_t *key_mask, const void *bias, const zt_attention *a, void *workspace))                 \
  /* --- rows picked by int64 index; indices were checked (check_index) */                                              \
  /* *bad_at (host) = position of the first index outside [0, limit) that is not 'ignore', or count */                  \
  K(check_index, (zt_stream *s, size_t *bad_at, const int64_t *index, int64_t limit, int64_t ignore, size_t count))     \
  K(count_not_equal, (zt_stream *s, int64_t *n, const int64_t *x, int64_t value, size_t count))                         \
  /* y (outer, n_index, inner) = x (outer, n, inner)[:, index, :] */                                                    \
  K(index_select, (zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer, size_t n,      \
                   size_t n_index, size_t inner))                                                                       \
  /* adds to y (outer, n, inner) at [:, index, :] the rows of x (outer, n_index, inner), in order of position; the sum  \
  ** over repeated indices is taken in stat. The gradient of index_select and of embeddings */                          \
  K(index_add, (zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer, size_t n,         \
                size_t n_index, size_t inner, void *workspace))                                                         \
  /* y, index (outer, n_index, inner): y[o,i,j] = x[o, index[o,i,j], j], x is (outer, n, inner) */                      \
  K(gather, (zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer, size_t n,            \
             size_t n_index, size_t inner))                                                                             \
  /* adds x[o,i,j] to y[o, index[o,i,j], j]; x, index (outer, n_index, inner), y (outer, n, inner) */                   \
  K(scatter_add, (zt_stream *s, zt_dtype t, void *y, const void *x, const int64_t *index, size_t outer, size_t n,       \
                  size_t n_index, size_t inner))                                                                        \
  /* --- losses. loss (stat, rows): 0 where label is ignore_index. grad (NULL ok, may be logits): softmax - target,     \
  ** unscaled, 0 where ignored. Target: 1 - smoothing on the label, plus smoothing / cols everywhere. ld: row stride */ \
  K(cross_entropy, (zt_stream *s, zt_dtype t, void *loss, void *grad, const void *logits, const int64_t *labels,        \
                    int64_t ignore_index, double smoothing, size_t rows, size_t cols, size_t ld))                       \
  /* y = x * *factor in stat(tx), rounded once; factor is one element of stat(tx), on the device. y may be x. float64   \
  ** goes with float64 */                                                                                               \
  K(scale, (zt_stream *s, zt_dtype ty, zt_dtype tx, void *y, const void *x, const void *factor, size_t count))          \
  /* --- 1-d convolution as a product: y (B, T_out, C * width) from x (B, T, C), column c * width + j is                \
  ** x[t * stride + j * dilation - pad, c] or 0. fold is its transpose (adds overlapping places) */                     \
  K(unfold1d, (zt_stream *s, zt_dtype t, void *y, const void *x, size_t batch, size_t n_t, size_t n_c, size_t n_out,    \
               size_t width, size_t stride, size_t dilation, size_t pad))                                               \
  K(fold1d, (zt_stream *s, zt_dtype t, void *x, const void *y, size_t batch, size_t n_t, size_t n_c, size_t n_out,      \
             size_t width, size_t stride, size_t dilation, size_t pad))                                                 \
  /* --- one token id per row of logits: temperature 0 is argmax; top_k 0 and top_p 1 are off. Row r draws word 0 of    \
  ** sample r of the key */                                                                                             \
  K(sample, (zt_stream *s, zt_dtype t, int64_t *ids, const void *logits, double temperature, size_t top_k,              \
             double top_p, const zt_rng_key *key, size_t rows, size_t cols, void *workspace))                           \
  /* --- gradients between ranks */                                                                                     \
  /* sum[i] = (where it adds: sum[i] +) w[0] * x[0][i] + w[1] * x[1][i] ... in float32 (float64 where 'sum' is), in that  \
  ** order, each operation rounded once; x[r] (dtype t) lies r * stride elements behind x. A term of weight 0 is left    \
  ** out, whatever x[r] is; where none is left the sum is 0. weights: host, n of them, rounded to the sum's dtype */     \
  K(weighted_sum, (zt_stream *s, zt_dtype ts, zt_dtype t, void *sum, bool adds, const void *x, const double *weights,   \
                   size_t n, size_t stride, size_t count))                                                              \
  /* y = x; *first_bad (host) is the index of the first non-finite element, or count; y NULL: looks only */             \
  K(copy_checked, (zt_stream *s, zt_dtype t, void *y, size_t *first_bad, const void *x, size_t count))                  \
  /* master[i] = x[i] where master[i], rounded to t (16 bits), is not x[i] bit for bit: takes over what was written into \
  ** a parameter, and keeps the master's precision where nothing was */                                                 \
  K(update_master, (zt_stream *s, zt_dtype t, float *master, const void *x, size_t count))                              \
  /* --- optimizers: p, m, v updated in place */                                                                        \
  K(optim_adam, (zt_stream *s, zt_dtype state, zt_dtype tg, void *p, void *m, void *v, const void *grad,                \
                 const zt_optim_step *c, size_t count))                                                                 \
  K(optim_sgd, (zt_stream *s, zt_dtype state, zt_dtype tg, void *p, void *m, const void *grad, const zt_optim_step *c,  \
                size_t count)) /* m NULL without momentum */                                                            \
  K(optim_lion, (zt_stream *s, zt_dtype state, zt_dtype tg, void *p, void *m, const void *grad,                         \
                 const zt_optim_step *c, size_t count))

/* W(name, parameters): bytes of workspace that the row of that name needs; 0 is an answer. */
#define ZT_KERNEL_WORKSPACES(W)                                                        \
  W(layer_norm_bwd, (zt_dtype t, size_t rows, size_t cols))                            \
  W(gemm, (zt_dtype t, const zt_gemm *g))                                              \
  W(bias_act_bwd, (zt_dtype t, size_t rows, size_t cols))                              \
  W(attention, (zt_dtype t, const zt_attention *a))                                    \
  W(attention_bwd, (zt_dtype t, const zt_attention *a))                                \
  W(index_add, (zt_dtype t, size_t outer, size_t n, size_t n_index, size_t inner))     \
  W(sample, (zt_dtype t, size_t rows, size_t cols))
/* clang-format on */

struct zt_kernels {
#define ZT_KERNEL_MEMBER(name, params) zt_status(*name) params;
#define ZT_WORKSPACE_MEMBER(name, params) size_t(*name##_workspace) params;
  ZT_KERNELS(ZT_KERNEL_MEMBER)
  ZT_KERNEL_WORKSPACES(ZT_WORKSPACE_MEMBER)
#undef ZT_KERNEL_MEMBER
#undef ZT_WORKSPACE_MEMBER
};

/* What the derivative of a unary function is computed from: bit 0 the input x, bit 1 the output y. */
static inline int zt_unary_needs(zt_unary fn) {
  switch (fn) {
    case ZT_UNARY_EXP:
    case ZT_UNARY_SQRT:
    case ZT_UNARY_RSQRT:
    case ZT_UNARY_TANH:
    case ZT_UNARY_SIGMOID:
    case ZT_UNARY_RELU:
      return 2;
    case ZT_UNARY_NEG:
    case ZT_UNARY_AFFINE:
      return 0;
    default:
      return 1;
  }
}

#endif
