//===- contract_reference.h - Composed operators, as the contract has them ===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Softmax, norms, losses, attention and random numbers of
// docs/reproduce/contract.md as scalar loops, in the order of their operations:
// every sum is ref_sum's, every product of vectors ref_dot's. Sessions compute
// them by contract_rows.h or by operators of torch; tests hold both to these
// bits. A function is given as its array form. Rows lie one behind the other;
// work has room for a row.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_REFERENCE_H
#define UDFTORCH_CONTRACT_REFERENCE_H

#include "contract.h"

static float ref_of(array1 *f, float x) {
  float y;
  f(1, &x, &y, 0);
  return y;
}

/// The largest element; a NaN if there is one.
static float ref_amax(int64_t n, const float *x) {
  float found = x[0];
  for (int64_t i = 1; i < n; ++i)
    if (x[i] > found || x[i] != x[i])
      found = x[i];
  return found;
}

//===----------------------------------------------------------------------===//
// Products and norms of elements
//===----------------------------------------------------------------------===//

/// The tree of ref_sum, with products; of no factor 1.
static float ref_product(int64_t n, const float *x) {
  if (n < 2)
    return n ? x[0] : 1.0f;
  int64_t p = half_of(n);
  return ref_product(p, x) * ref_product(n - p, x + p);
}

EXPORT void ref_prod(int64_t rows, int64_t n, const float *x, float *y) {
  for (int64_t r = 0; r < rows; ++r)
    y[r] = ref_product(n, x + r * n);
}

/// Norms of order 1 or 2.
EXPORT void ref_norm(int64_t rows, int64_t n, int order, const float *x,
                     float *work, float *y) {
  for (int64_t r = 0; r < rows; ++r, x += n) {
    for (int64_t i = 0; i < n; ++i)
      work[i] = order == 1 ? fabsf(x[i]) : x[i] * x[i];
    float sum = ref_sum(n, work, 1);
    y[r] = order == 1 ? sum : __builtin_sqrtf(sum);
  }
}

/// The mean of a row, and the sum of the squares of the differences from it.
static float ref_spread(int64_t n, const float *x, float *work, float *mean) {
  *mean = ref_sum(n, x, 1) / (float)n;
  for (int64_t i = 0; i < n; ++i)
    work[i] = (x[i] - *mean) * (x[i] - *mean);
  return ref_sum(n, work, 1);
}

/// Variances; less is what is taken from the number of elements.
EXPORT void ref_var(int64_t rows, int64_t n, float less, const float *x,
                    float *work, float *y) {
  float mean;
  for (int64_t r = 0; r < rows; ++r)
    y[r] = ref_spread(n, x + r * n, work, &mean) / ((float)n - less);
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

EXPORT void ref_softmax(int64_t rows, int64_t n, const float *x, array1 *exp,
                        float *y) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    float largest = ref_amax(n, x);
    for (int64_t i = 0; i < n; ++i)
      y[i] = ref_of(exp, x[i] - largest);
    float sum = ref_sum(n, y, 1);
    for (int64_t i = 0; i < n; ++i)
      y[i] = y[i] / sum;
  }
}

EXPORT void ref_log_softmax(int64_t rows, int64_t n, const float *x,
                            array1 *exp, array1 *log, float *work, float *y) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    float largest = ref_amax(n, x);
    for (int64_t i = 0; i < n; ++i)
      work[i] = ref_of(exp, y[i] = x[i] - largest);
    float less = ref_of(log, ref_sum(n, work, 1));
    for (int64_t i = 0; i < n; ++i)
      y[i] = y[i] - less;
  }
}

/// The largest argument of a row counts as 0 if it is infinite.
EXPORT void ref_logsumexp(int64_t rows, int64_t n, const float *x, array1 *exp,
                          array1 *log, float *work, float *y) {
  for (int64_t r = 0; r < rows; ++r, x += n) {
    float largest = ref_amax(n, x);
    largest = fabsf(largest) == INFINITY ? 0.0f : largest;
    for (int64_t i = 0; i < n; ++i)
      work[i] = ref_of(exp, x[i] - largest);
    y[r] = ref_of(log, ref_sum(n, work, 1)) + largest;
  }
}

/// The gradient of softmax, whose results are x.
EXPORT void ref_softmax_backward(int64_t rows, int64_t n, const float *g,
                                 const float *x, float *work, float *y) {
  for (int64_t r = 0; r < rows; ++r, g += n, x += n, y += n) {
    for (int64_t i = 0; i < n; ++i)
      work[i] = g[i] * x[i];
    float sum = ref_sum(n, work, 1);
    for (int64_t i = 0; i < n; ++i)
      y[i] = (g[i] - sum) * x[i];
  }
}

/// The gradient of log_softmax, whose results are x.
EXPORT void ref_log_softmax_backward(int64_t rows, int64_t n, const float *g,
                                     const float *x, array1 *exp, float *y) {
  for (int64_t r = 0; r < rows; ++r, g += n, x += n, y += n) {
    float sum = ref_sum(n, g, 1);
    for (int64_t i = 0; i < n; ++i)
      y[i] = g[i] - ref_of(exp, x[i]) * sum;
  }
}

//===----------------------------------------------------------------------===//
// Norms
//===----------------------------------------------------------------------===//

/// Layer norm; and group norm, whose rows are groups of channels: a weight is
/// for so many elements in succession, and weights begin again with each of
/// the parts of rows.
EXPORT void ref_layer_norm(int64_t rows, int64_t n, int64_t each, int64_t parts,
                           const float *x, const float *weight,
                           const float *bias, float eps, float *work,
                           float *mean, float *rstd, float *y) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    float squares = ref_spread(n, x, work, &mean[r]);
    rstd[r] = 1.0f / __builtin_sqrtf(squares / (float)n + eps);
    for (int64_t i = 0; i < n; ++i) {
      int64_t w = (r % parts * n + i) / each;
      y[i] = (x[i] - mean[r]) * rstd[r];
      y[i] = weight ? y[i] * weight[w] : y[i];
      y[i] = bias ? y[i] + bias[w] : y[i];
    }
  }
}

/// The gradients of layer norm, of which weight's and bias's may be null.
EXPORT void ref_layer_norm_backward(int64_t rows, int64_t n, const float *g,
                                    const float *x, const float *mean,
                                    const float *rstd, const float *weight,
                                    float *work, float *y, float *of_weight,
                                    float *of_bias) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *gr = g + r * n, *xr = x + r * n;
#define SCALED (weight ? gr[i] * weight[i] : gr[i])
#define HAT ((xr[i] - mean[r]) * rstd[r])
    for (int64_t i = 0; i < n; ++i)
      work[i] = SCALED;
    float one = ref_sum(n, work, 1) / (float)n;
    for (int64_t i = 0; i < n; ++i)
      work[i] = SCALED * HAT;
    float two = ref_sum(n, work, 1) / (float)n;
    for (int64_t i = 0; i < n; ++i)
      y[r * n + i] = ((SCALED - one) - HAT * two) * rstd[r];
  }
  for (int64_t i = 0; i < n && of_weight; ++i) {
    float products[rows]; // of a column
    for (int64_t r = 0; r < rows; ++r) {
      const float *gr = g + r * n, *xr = x + r * n;
      products[r] = gr[i] * HAT;
    }
    of_weight[i] = ref_sum(rows, products, 1);
    of_bias[i] = ref_sum(rows, g + i, n);
  }
#undef SCALED
#undef HAT
}

/// The sum over positions, then over samples, of what work has for a channel.
static float ref_channel(int64_t samples, int64_t n, float *work) {
  for (int64_t b = 0; b < samples; ++b)
    work[b] = ref_sum(n, work + b * n, 1);
  return ref_sum(samples, work, 1);
}

/// Batch norm in training. work has room for a channel.
EXPORT void ref_batch_norm(int64_t samples, int64_t channels, int64_t n,
                           const float *x, const float *weight,
                           const float *bias, float eps, float *work,
                           float *mean, float *rstd, float *y) {
  float count = (float)(samples * n);
  for (int64_t c = 0; c < channels; ++c) {
#define EACH_ITEM(at)                                                          \
  for (int64_t j = 0, at = c * n; j < samples * n;                             \
       ++j, at = (j / n * channels + c) * n + j % n)
    EACH_ITEM(at) work[j] = x[at];
    mean[c] = ref_channel(samples, n, work) / count;
    EACH_ITEM(at) work[j] = (x[at] - mean[c]) * (x[at] - mean[c]);
    float squares = ref_channel(samples, n, work);
    rstd[c] = 1.0f / __builtin_sqrtf(squares / count + eps);
    EACH_ITEM(at) {
      y[at] = (x[at] - mean[c]) * rstd[c];
      y[at] = weight ? y[at] * weight[c] : y[at];
      y[at] = bias ? y[at] + bias[c] : y[at];
    }
  }
}

/// Its gradients.
EXPORT void ref_batch_norm_backward(int64_t samples, int64_t channels,
                                    int64_t n, const float *g, const float *x,
                                    const float *mean, const float *rstd,
                                    const float *weight, float *work, float *y,
                                    float *of_weight, float *of_bias) {
  float count = (float)(samples * n);
  for (int64_t c = 0; c < channels; ++c) {
    EACH_ITEM(at) work[j] = g[at];
    of_bias[c] = ref_channel(samples, n, work);
    EACH_ITEM(at) work[j] = g[at] * ((x[at] - mean[c]) * rstd[c]);
    of_weight[c] = ref_channel(samples, n, work);
    float one = of_bias[c] / count, two = of_weight[c] / count;
    float scale = weight ? rstd[c] * weight[c] : rstd[c];
    EACH_ITEM(at)
    y[at] = ((g[at] - one) - (x[at] - mean[c]) * rstd[c] * two) * scale;
  }
#undef EACH_ITEM
}

//===----------------------------------------------------------------------===//
// Losses
//===----------------------------------------------------------------------===//

/// The negative log-likelihood of rows of n classes, and the sum of weights.
/// Rows with another label than a class are ignored.
EXPORT void ref_nll(int64_t rows, int64_t n, const float *x,
                    const int64_t *labels, const float *weight, int mean,
                    float *work, float *loss) {
  float shares[rows];
  for (int64_t r = 0; r < rows; ++r) {
    int used = labels[r] >= 0 && labels[r] < n;
    shares[r] = !used ? 0.0f : weight ? weight[labels[r]] : 1.0f;
    work[r] = used ? -x[r * n + labels[r]] * shares[r] : 0.0f;
  }
  loss[1] = ref_sum(rows, shares, 1);
  loss[0] = ref_sum(rows, work, 1);
  loss[0] = mean ? loss[0] / loss[1] : loss[0];
}

enum loss { SQUARED_ERROR, CROSS_ENTROPY, LOGITS };

/// The loss of an element. Logarithms of probabilities are at least -100.
static float ref_loss_of(enum loss kind, float x, float t, array1 *exp,
                         array1 *log, array1 *log1p) {
  if (kind == SQUARED_ERROR)
    return (x - t) * (x - t);
  if (kind == CROSS_ENTROPY) {
    float no = fmaxf(ref_of(log1p, -x), -100.0f) * (t - 1.0f);
    return no - fmaxf(ref_of(log, x), -100.0f) * t;
  }
  float logs = fminf(x, 0.0f) - ref_of(log1p, ref_of(exp, -fabsf(x)));
  return (1.0f - t) * x - logs;
}

/// mse_loss, binary_cross_entropy, and that of logits: sums or means.
EXPORT void ref_loss(int64_t n, int kind, int mean, const float *x,
                     const float *target, array1 *exp, array1 *log,
                     array1 *log1p, float *work, float *loss) {
  for (int64_t i = 0; i < n; ++i)
    work[i] = ref_loss_of((enum loss)kind, x[i], target[i], exp, log, log1p);
  *loss = ref_sum(n, work, 1);
  *loss = mean ? *loss / (float)n : *loss;
}

/// smooth_l1_loss: a sum or a mean. beta is above 0.
EXPORT void ref_smooth_l1(int64_t n, int mean, const float *x,
                          const float *target, float beta, float *work,
                          float *loss) {
  for (int64_t i = 0; i < n; ++i) {
    float z = fabsf(x[i] - target[i]);
    work[i] = z < beta ? 0.5f * z * z / beta : z - 0.5f * beta;
  }
  *loss = ref_sum(n, work, 1);
  *loss = mean ? *loss / (float)n : *loss;
}

/// Its gradient, of that of the loss; the rounded 1/n comes first.
EXPORT void ref_smooth_l1_backward(int64_t n, int mean, float grad,
                                   const float *x, const float *target,
                                   float beta, float *y) {
  float share = mean ? 1.0f / (float)n : 1.0f, whole = grad * share;
  for (int64_t i = 0; i < n; ++i) {
    float d = x[i] - target[i];
    y[i] = d <= -beta ? -whole : d >= beta ? whole : d * share * grad / beta;
  }
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// One head: n queries, m keys, of size k; values of size v. The mask is added,
/// or null. work has room for m; values are read by columns.
EXPORT void ref_attention(int64_t n, int64_t m, int64_t k, int64_t v,
                          const float *query, const float *key,
                          const float *value, const float *mask, float scale,
                          array1 *exp, float *work, float *y) {
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < m; ++i) {
      work[i] = ref_dot(k, query + r * k, 1, key + i * k, 1) * scale;
      work[i] = mask ? work[i] + mask[r * m + i] : work[i];
    }
    float largest = ref_amax(m, work);
    largest = largest == -INFINITY ? 0.0f : largest;
    for (int64_t i = 0; i < m; ++i)
      work[i] = ref_of(exp, work[i] - largest);
    float sum = ref_sum(m, work, 1);
    for (int64_t i = 0; i < m; ++i)
      work[i] = work[i] / (sum == 0.0f ? 1.0f : sum);
    for (int64_t j = 0; j < v; ++j)
      y[r * v + j] = ref_dot(m, work, 1, value + j, v);
  }
}

//===----------------------------------------------------------------------===//
// Random numbers
//===----------------------------------------------------------------------===//

/// The fraction of element e of a call: the upper 24 bits of its word.
static float ref_fraction(uint64_t key, int64_t e) {
  uint32_t four[4];
  philox((uint64_t)e / 4, key, four);
  return (float)(four[e % 4] >> 8) * 0x1p-24f;
}

EXPORT void ref_uniform(int64_t n, uint64_t key, float distance, float lower,
                        float *y) {
  for (int64_t e = 0; e < n; ++e) {
    y[e] = ref_fraction(key, e);
    if (distance != 1.0f || lower != 0.0f)
      y[e] = y[e] * distance + lower;
  }
}

/// Box and Muller, 1958: of elements 2i and 2i + 1 the first has the cosine.
EXPORT void ref_normal(int64_t n, uint64_t key, array1 *log, array1 *cos,
                       array1 *sin, float *y) {
  for (int64_t e = 0; e < n; ++e) {
    float u = ref_fraction(key, e / 2 * 2),
          v = ref_fraction(key, e / 2 * 2 + 1);
    float radius = __builtin_sqrtf(ref_of(log, 1.0f - u) * -2.0f);
    y[e] = radius * ref_of(e % 2 ? sin : cos, v * 0x1.921fb6p2f);
  }
}

EXPORT void ref_exponential(int64_t n, uint64_t key, float rate, array1 *log,
                            float *y) {
  for (int64_t e = 0; e < n; ++e) {
    y[e] = fmaxf(-ref_of(log, 1.0f - ref_fraction(key, e)), 0x1p-25f);
    y[e] = rate != 1.0f ? y[e] / rate : y[e];
  }
}

/// The 64 bits of number e: two words, the first above.
static int64_t ref_order(uint64_t key, int64_t e) {
  uint32_t four[4];
  philox((uint64_t)e / 2, key, four);
  const uint32_t *two = four + e % 2 * 2;
  return (int64_t)((uint64_t)two[0] << 32 | two[1]);
}

/// The place of the largest quotient of n weights over exponential variates: of
/// equal ones the first. Word e + first of the key belongs to place e.
EXPORT void ref_multinomial(int64_t n, int64_t first, uint64_t key,
                            const float *weights, array1 *log, int64_t *y) {
  float most = -1.0f;
  for (int64_t e = 0; e < n; ++e) {
    float variate = -ref_of(log, 1.0f - ref_fraction(key, first + e));
    float quotient = weights[e] / fmaxf(variate, 0x1p-25f);
    if (quotient > most) {
      most = quotient;
      *y = e;
    }
  }
}

/// Draws with replacement: weights over the largest are integers, rounded up,
/// of 38 bits. Draw d takes the 53 upper bits of words 2d and 2d + 1.
EXPORT void ref_multinomial_again(int64_t n, int64_t draws, uint64_t key,
                                  const float *weights, int64_t *y) {
  double most = 0.0;
  for (int64_t e = 0; e < n; ++e)
    most = fmax(most, (double)weights[e]);
  int64_t total = 0;
  for (int64_t e = 0; e < n; ++e)
    total += (int64_t)ceil((double)weights[e] / most * 0x1p38);
  for (int64_t d = 0; d < draws; ++d) {
    uint64_t bits = (uint64_t)ref_order(key, d) >> 11;
    int64_t place = (int64_t)floor((double)bits * 0x1p-53 * (double)total);
    place = place < total ? place : total - 1;
    for (y[d] = 0; place >= 0; ++y[d])
      place -= (int64_t)ceil((double)weights[y[d]] / most * 0x1p38);
    --y[d];
  }
}

/// Ones where a fraction is below the probability; dropout keeps these.
EXPORT void ref_bernoulli(int64_t n, uint64_t key, float p, float *y) {
  for (int64_t e = 0; e < n; ++e)
    y[e] = ref_fraction(key, e) < p ? 1.0f : 0.0f;
}

/// Numbers below n in the order of their 64 bits, ties by number.
EXPORT void ref_randperm(int64_t n, uint64_t key, int64_t *y) {
  for (int64_t e = 0; e < n; ++e) {
    int64_t mine = ref_order(key, e), place = 0;
    for (int64_t other = 0; other < n; ++other) {
      int64_t theirs = ref_order(key, other);
      place += theirs < mine || (theirs == mine && other < e);
    }
    y[place] = e;
  }
}

#endif
