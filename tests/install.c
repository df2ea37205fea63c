/* install.c - a stranger's program: the gradient of sum(x * x), through the installed headers. */
#include <stdio.h>
#include <ztrain.h>

static zt_status gradient_of_squares(zt_ctx *c, const float x_values[3], float grad_values[3]) {
  zt_tensor *x = NULL, *square = NULL, *sum = NULL;
  zt_status st;
  ZT_TRY_GOTO(zt_tensor_from(c, &x, ZT_F32, 1, (const int64_t[]){3}, x_values), done);
  x->requires_grad = true;
  ZT_TRY_GOTO(zt_mul(c, &square, x, x), done);
  ZT_TRY_GOTO(zt_sum(c, &sum, square, ZT_ALL_DIMS, false), done);
  ZT_TRY_GOTO(zt_backward(c, sum, NULL, 1), done);
  ZT_TRY_GOTO(zt_tensor_read(c, x->grad, grad_values), done);
done:
  zt_tensor_release(sum);
  zt_tensor_release(square);
  zt_tensor_release(x);
  return st;
}

int main(void) {
  zt_ctx *c = NULL;
  float x[3] = {1, -2, 3}, grad[3] = {0};
  zt_status st = zt_ctx_new(NULL, &c);
  if (st == ZT_OK) st = gradient_of_squares(c, x, grad);
  zt_ctx_free(c);
  if (st != ZT_OK) return fprintf(stderr, "%s: %s\n", zt_status_text(st), zt_message()), 1;
  for (int i = 0; i < 3; i++)
    if (grad[i] != 2 * x[i]) return fprintf(stderr, "gradient %d is %g, not %g\n", i, grad[i], 2 * x[i]), 1;
  return 0;
}
