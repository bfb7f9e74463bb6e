//===- contract_exact.h - Products of bfloat16 as sums of integers --------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The clause of docs/reproduce/contract_exact.md as C. ref_exact_mm is the
// contract of products in bfloat16, ref_exact_weighted that of sums of rows in
// bfloat16 with weights in float32; the functions that begin with fast_ give
// the same bits.
//
// A sum of integers has no order. So a kernel may add the products of a chunk
// as its registers, threads or tensor cores ask for.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_EXACT_H
#define UDFTORCH_CONTRACT_EXACT_H

#include "contract.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

/// The sums of products of digits over a chunk stay below 2^31 in all, and
/// those of each two digits do not exceed 2^24.
#ifndef EXACT_CHUNK
#define EXACT_CHUNK 512
#endif

/// A unit beyond all exponents says that a number is infinite or NaN.
enum { EXACT_BROKEN = 1 << 20 };

/// The largest exponent of a weight times a unit, biased as float32's are, for
/// which a chunk has a unit in float32.
enum { EXACT_LARGEST = 268 };

// What a negative control adds to the upper sum of a chunk.
#ifndef EXACT_OFF
#define EXACT_OFF 0
#endif

//===----------------------------------------------------------------------===//
// The contract
//===----------------------------------------------------------------------===//

/// The exponent w of the unit of k numbers, which are integers q times 2^w,
/// with q = 256 h + l between -32,639 and 32,639 after rounding: the least such
/// w for normal numbers. Encodings of bfloat16 are in the order of magnitudes.
/// A carry out of the significand of 255 takes the next exponent, since 255 *
/// 2^7 has an upper digit of 128.
static int32_t ref_unit(int64_t k, const uint16_t *a, int64_t sa) {
  int32_t top = 0;
  for (int64_t p = 0; p < k; ++p) {
    int32_t magnitude = a[p * sa] & 0x7FFF;
    top = magnitude > top ? magnitude : top;
  }
  if (top >= 0x7F80)
    return EXACT_BROKEN;
  int32_t exponent = (top + 1) >> 7;
  return (exponent ? exponent : 1) - 141;
}

/// 2^exponent as a double; exponents are from -1022 to 1023.
static double exact_power(int64_t exponent) {
  uint64_t bits = (uint64_t)(1023 + exponent) << 52;
  double y;
  memcpy(&y, &bits, sizeof y);
  return y;
}

/// The integer that is nearest to a number over 2^unit, of two the even one.
static int64_t ref_whole(uint16_t number, int32_t unit) {
  uint32_t bits = (uint32_t)number << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (int64_t)((x * exact_power(-unit) + 0x1.8p52) - 0x1.8p52);
}

/// What is left of the two exact sums of a chunk: they are joined with one
/// rounding each, and times a power of two.
static float ref_joined(int64_t upper, int64_t lower, int64_t unit) {
  float sum = 256.0f * (float)upper + (float)lower; // 256 times it is exact
  return (float)(sum * exact_power(unit));
}

/// Adds the product of two integers to the sums of a chunk, digit by digit.
static void ref_add_digits(int64_t x, int64_t y, int64_t *upper,
                           int64_t *lower) {
  int64_t xh = (x + 128) >> 8, yh = (y + 128) >> 8;
  int64_t xl = x - 256 * xh, yl = y - 256 * yh;
  *upper += 256 * xh * yh + xh * yl + xl * yh;
  *lower += xl * yl;
}

/// The product of a chunk.
static float ref_exact_chunk(int64_t k, const uint16_t *a, int64_t sa,
                             const uint16_t *b, int64_t sb) {
  int32_t v = ref_unit(k, a, sa), w = ref_unit(k, b, sb);
  if (v == EXACT_BROKEN || w == EXACT_BROKEN)
    return NAN;
  int64_t upper = EXACT_OFF, lower = 0;
  for (int64_t p = 0; p < k; ++p)
    ref_add_digits(ref_whole(a[p * sa], v), ref_whole(b[p * sb], w), &upper,
                   &lower);
  return ref_joined(upper, lower, (int64_t)v + w);
}

/// The product of two vectors: chunks, added up by the tree of ref_sum.
static float ref_exact_dot(int64_t k, const uint16_t *a, int64_t sa,
                           const uint16_t *b, int64_t sb) {
  if (k <= EXACT_CHUNK)
    return ref_exact_chunk(k, a, sa, b, sb);
  int64_t p = EXACT_CHUNK * half_of((k + EXACT_CHUNK - 1) / EXACT_CHUNK);
  return ref_exact_dot(p, a, sa, b, sb) +
         ref_exact_dot(k - p, a + p * sa, sa, b + p * sb, sb);
}

/// C = A B in float32, of which A has rows and columns with the strides am and
/// ak, B with bk and bn; the rows of C are dense.
EXPORT void ref_exact_mm(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                         int64_t am, int64_t ak, const uint16_t *b, int64_t bk,
                         int64_t bn, float *c) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      c[i * n + j] = ref_exact_dot(k, a + i * am, ak, b + j * bn, bk);
}

/// The encoding of a number in float32.
static int32_t exact_bits(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// The exponent of the unit of weights w of k rows of n numbers, which have
/// units of their own: a weight counts with that of its row. Encodings without
/// the sign are in the order of magnitudes, here with 21 bits of significands;
/// those that would round to 32,640 and above carry. Subnormal weights count as
/// zeros, and rows without weight not at all.
static int32_t ref_weights_unit(int64_t n, int64_t k, const float *w,
                                int64_t wk, const uint16_t *v, int64_t vk,
                                int64_t vn) {
  int32_t top = INT32_MIN;
  for (int64_t p = 0; p < k; ++p) {
    int32_t magnitude = exact_bits(w[p * wk]) & 0x7FFFFFFF;
    if (magnitude < 0x00800000)
      continue;
    int32_t unit = ref_unit(n, v + p * vk, vn);
    if (magnitude >= 0x7F800000 || unit == EXACT_BROKEN)
      return EXACT_BROKEN;
    int32_t code = (magnitude >> 2) + unit * (1 << 21);
    top = code > top ? code : top;
  }
  if (top == INT32_MIN)
    return 0;
  int32_t exponent = (top + 0x4040) >> 21;
  if (exponent > EXACT_LARGEST)
    return EXACT_BROKEN;
  return (exponent > 1 ? exponent : 1) - 141;
}

/// The weighted sum of a chunk of k rows of n numbers, for one column.
static float ref_weighted_chunk(int64_t n, int64_t k, const float *w,
                                int64_t wk, const uint16_t *v, int64_t vk,
                                int64_t vn, int64_t column) {
  int32_t unit = ref_weights_unit(n, k, w, wk, v, vk, vn);
  if (unit == EXACT_BROKEN)
    return NAN;
  int64_t upper = EXACT_OFF, lower = 0;
  for (int64_t p = 0; p < k; ++p) {
    if ((exact_bits(w[p * wk]) & 0x7FFFFFFF) < 0x00800000)
      continue;
    int32_t of_row = ref_unit(n, v + p * vk, vn);
    double x = w[p * wk] * exact_power(of_row - unit);
    ref_add_digits((int64_t)((x + 0x1.8p52) - 0x1.8p52),
                   ref_whole(v[p * vk + column * vn], of_row), &upper, &lower);
  }
  return ref_joined(upper, lower, unit);
}

/// The weighted sum of all rows: chunks, added up by the tree of ref_sum.
static float ref_weighted_sum(int64_t n, int64_t k, const float *w, int64_t wk,
                              const uint16_t *v, int64_t vk, int64_t vn,
                              int64_t column) {
  if (k <= EXACT_CHUNK)
    return ref_weighted_chunk(n, k, w, wk, v, vk, vn, column);
  int64_t p = EXACT_CHUNK * half_of((k + EXACT_CHUNK - 1) / EXACT_CHUNK);
  return ref_weighted_sum(n, p, w, wk, v, vk, vn, column) +
         ref_weighted_sum(n, k - p, w + p * wk, wk, v + p * vk, vk, vn, column);
}

/// Y = W V in float32, of which the weights W have rows and columns with the
/// strides wm and wk, the values V with vk and vn; the rows of Y are dense.
EXPORT void ref_exact_weighted(int64_t m, int64_t n, int64_t k, const float *w,
                               int64_t wm, int64_t wk, const uint16_t *v,
                               int64_t vk, int64_t vn, float *y) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      y[i * n + j] = ref_weighted_sum(n, k, w + i * wm, wk, v, vk, vn, j);
}

//===----------------------------------------------------------------------===//
// Digits
//===----------------------------------------------------------------------===//

/// Factors of a chunk of a row or column as digits; whole is 256 high + low.
struct digits {
  int16_t whole[EXACT_CHUNK], high[EXACT_CHUNK], low[EXACT_CHUNK];
};

/// Writes count numbers as digits, with zeros up to a multiple of 4, and
/// returns the power of two that is their unit, or NaN.
static double find_digits(int64_t count, const uint16_t *x,
                          struct digits *found) {
  uint16_t top = 0;
  for (int64_t p = 0; p < count; ++p) {
    uint16_t magnitude = x[p] & 0x7FFF;
    top = magnitude > top ? magnitude : top;
  }
  uint16_t largest[1] = {top};
  int32_t unit = ref_unit(1, largest, 1);
  for (int64_t p = count; p < (count + 3) / 4 * 4; ++p)
    found->whole[p] = found->high[p] = found->low[p] = 0;
  if (unit == EXACT_BROKEN) {
    memset(found, 0, sizeof *found);
    return NAN;
  }
  // Two factors, because one may lie beyond the powers of float32.
  int32_t half = (-unit) >> 1;
  float one = (float)exact_power(half);
  float other = (float)exact_power(-unit - half);
  for (int64_t p = 0; p < count; ++p) {
    uint32_t bits = (uint32_t)x[p] << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    y = y * one * other + 0x1.8p23f; // rounds; the integer is in the lower bits
    memcpy(&bits, &y, sizeof bits);
    int16_t q = (int16_t)bits;
    int16_t h = (int16_t)((q + 128) >> 8);
    found->whole[p] = q;
    found->high[p] = h;
    found->low[p] = (int16_t)(q - 256 * h);
  }
  return exact_power(unit);
}

/// What stands for the unit of a row of values with an infinity or a NaN: with
/// any weight it is above EXACT_LARGEST.
enum { EXACT_NO_UNIT = EXACT_LARGEST + 1 };

/// Writes the weights of count rows of values as digits, as find_digits does.
/// Units are exponents.
static double find_weights(int64_t count, const float *w, const int32_t *units,
                           struct digits *found) {
  int32_t top = INT32_MIN;
  for (int64_t p = 0; p < count; ++p) {
    int32_t magnitude = exact_bits(w[p]) & 0x7FFFFFFF;
    int32_t code = (magnitude >> 2) + units[p] * (1 << 21);
    code += magnitude >= 0x7F800000 ? EXACT_NO_UNIT << 21 : 0;
    code = magnitude >= 0x00800000 ? code : INT32_MIN;
    top = code > top ? code : top;
  }
  int32_t exponent = top == INT32_MIN ? 141 : (top + 0x4040) >> 21;
  for (int64_t p = count; p < (count + 3) / 4 * 4; ++p)
    found->whole[p] = found->high[p] = found->low[p] = 0;
  if (exponent > EXACT_LARGEST) {
    memset(found, 0, sizeof *found);
    return NAN;
  }
  int32_t unit = (exponent > 1 ? exponent : 1) - 141;
  for (int64_t p = 0; p < count; ++p) {
    int32_t bits = exact_bits(w[p]), own = (bits >> 23) & 0xFF;
    int32_t more = units[p] - unit;
    // The product with a power of two; what is below all exponents is a zero.
    bits = own && own + more > 0
               ? (int32_t)((uint32_t)bits + ((uint32_t)more << 23))
               : 0;
    float y;
    memcpy(&y, &bits, sizeof y);
    int16_t q = (int16_t)exact_bits(y + 0x1.8p23f);
    int16_t h = (int16_t)((q + 128) >> 8);
    found->whole[p] = q;
    found->high[p] = h;
    found->low[p] = (int16_t)(q - 256 * h);
  }
  return exact_power(unit);
}

/// The numbers of a chunk, one behind the other: where they are, or in work.
static const uint16_t *gathered(int64_t count, const uint16_t *x,
                                int64_t stride, uint16_t *work) {
  if (stride == 1)
    return x;
  for (int64_t p = 0; p < count; ++p)
    work[p] = x[p * stride];
  return work;
}

//===----------------------------------------------------------------------===//
// Tiles
//===----------------------------------------------------------------------===//

// A tile has four rows, and columns that fill two registers of AVX-512 or one
// of AVX2. Lanes are sums of 32 bits; a lane takes two or four terms at once.
enum { EXACT_ROWS = 4 };
#ifdef __AVX512BW__
enum { EXACT_LANES = 16, EXACT_VECTORS = 2 };
#else
enum { EXACT_LANES = 8, EXACT_VECTORS = 1 };
#endif
enum { EXACT_COLUMNS = EXACT_LANES * EXACT_VECTORS };

typedef int32_t sums32 __attribute__((vector_size(4 * EXACT_LANES)));
typedef int32_t exact_sums[EXACT_ROWS][EXACT_COLUMNS];

/// Adds products of pairs of 16 bits, which do not overflow.
static inline sums32 add_pairs(sums32 sum, sums32 x, sums32 y) {
#if defined __AVX512BW__
  return sum + (sums32)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#elif defined __AVX2__
  return sum + (sums32)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#else
  return sum + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

static inline sums32 spread_pair(const int16_t *pair) {
  int32_t both;
  memcpy(&both, pair, sizeof both);
  return both - (sums32){0};
}

/// The sums of a tile over a chunk, from pairs of 16 bits. Rows of A are across
/// apart; B has three planes of pairs: whole numbers, upper and lower digits.
static void exact_pairs(int64_t pairs, const int16_t *high, const int16_t *low,
                        int64_t across, const int16_t *b, int64_t plane,
                        exact_sums upper, exact_sums lower) {
  sums32 hi[EXACT_ROWS][EXACT_VECTORS], lo[EXACT_ROWS][EXACT_VECTORS];
#pragma clang loop unroll(full)
  for (int r = 0; r < EXACT_ROWS; ++r)
#pragma clang loop unroll(full)
    for (int v = 0; v < EXACT_VECTORS; ++v)
      hi[r][v] = lo[r][v] = (sums32){0};
  for (int64_t p = 0; p < pairs; ++p, b += 2 * EXACT_COLUMNS) {
    sums32 y[3][EXACT_VECTORS];
#pragma clang loop unroll(full)
    for (int v = 0; v < EXACT_VECTORS; ++v)
#pragma clang loop unroll(full)
      for (int d = 0; d < 3; ++d)
        memcpy(&y[d][v], b + d * plane + 2 * v * EXACT_LANES, sizeof(sums32));
#pragma clang loop unroll(full)
    for (int r = 0; r < EXACT_ROWS; ++r) {
      sums32 h = spread_pair(high + r * across + 2 * p);
      sums32 l = spread_pair(low + r * across + 2 * p);
#pragma clang loop unroll(full)
      for (int v = 0; v < EXACT_VECTORS; ++v) {
        hi[r][v] = add_pairs(hi[r][v], h, y[0][v]);
        hi[r][v] = add_pairs(hi[r][v], l, y[1][v]);
        lo[r][v] = add_pairs(lo[r][v], l, y[2][v]);
      }
    }
  }
  memcpy(upper, hi, sizeof hi);
  memcpy(lower, lo, sizeof lo);
}

#if defined __AVX512BW__ && !defined EXACT_PLAIN
#define EXACT_BYTES 1

static inline __m512i spread_four(const int8_t *four) {
  int32_t all;
  memcpy(&all, four, sizeof all);
  return _mm512_set1_epi32(all);
}

/// The same from fours of bytes, by VNNI, which multiplies bytes without a sign
/// and with one: digits of B are 128 above what they are. of_rows has the sums
/// of upper and lower digits of each row.
__attribute__((target("avx512vnni"))) static void
exact_bytes(int64_t fours, const int8_t *high, const int8_t *low,
            int64_t across, const int32_t (*of_rows)[2], int64_t chunks,
            const uint8_t *b, int64_t plane, exact_sums upper,
            exact_sums lower) {
  __m512i hh[EXACT_ROWS][2], mid[EXACT_ROWS][2], ll[EXACT_ROWS][2];
#pragma clang loop unroll(full)
  for (int r = 0; r < EXACT_ROWS; ++r) {
    const int32_t *sums = of_rows[r * chunks];
    hh[r][0] = hh[r][1] = _mm512_set1_epi32(-128 * sums[0]);
    mid[r][0] = mid[r][1] = _mm512_set1_epi32(-128 * (sums[0] + sums[1]));
    ll[r][0] = ll[r][1] = _mm512_set1_epi32(-128 * sums[1]);
  }
  for (int64_t p = 0; p < fours; ++p, b += 4 * EXACT_COLUMNS) {
    __m512i yh[2], yl[2];
#pragma clang loop unroll(full)
    for (int v = 0; v < 2; ++v) {
      yh[v] = _mm512_loadu_si512(b + 64 * v);
      yl[v] = _mm512_loadu_si512(b + plane + 64 * v);
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < EXACT_ROWS; ++r) {
      __m512i h = spread_four(high + r * across + 4 * p);
      __m512i l = spread_four(low + r * across + 4 * p);
#pragma clang loop unroll(full)
      for (int v = 0; v < 2; ++v) {
        hh[r][v] = _mm512_dpbusd_epi32(hh[r][v], yh[v], h);
        mid[r][v] = _mm512_dpbusd_epi32(mid[r][v], yl[v], h);
        ll[r][v] = _mm512_dpbusd_epi32(ll[r][v], yl[v], l);
        mid[r][v] = _mm512_dpbusd_epi32(mid[r][v], yh[v], l);
      }
    }
  }
#pragma clang loop unroll(full)
  for (int r = 0; r < EXACT_ROWS; ++r)
#pragma clang loop unroll(full)
    for (int v = 0; v < 2; ++v) {
      __m512i hi = _mm512_add_epi32(_mm512_slli_epi32(hh[r][v], 8), mid[r][v]);
      _mm512_storeu_si512(upper[r] + 16 * v, hi);
      _mm512_storeu_si512(lower[r] + 16 * v, ll[r][v]);
    }
}
#endif

/// The chunk of a tile in float32, as ref_exact_chunk joins its sums. The units
/// of rows are chunks apart.
static void join_sums(exact_sums upper, exact_sums lower, const double *rows,
                      int64_t chunks, const double *columns,
                      float (*out)[EXACT_COLUMNS]) {
#ifdef __AVX512BW__
  // Scaling rounds once, as the conversion of a double does.
  __m512 across[EXACT_VECTORS];
  for (int v = 0; v < EXACT_VECTORS; ++v) {
    __m256 half[2];
    for (int h = 0; h < 2; ++h)
      half[h] = _mm512_cvtpd_ps(
          _mm512_getexp_pd(_mm512_loadu_pd(columns + 16 * v + 8 * h)));
    across[v] = _mm512_insertf32x8(_mm512_castps256_ps512(half[0]), half[1], 1);
  }
  for (int r = 0; r < EXACT_ROWS; ++r) {
    __m512 down = _mm512_set1_ps((float)_mm_cvtsd_f64(
        _mm_getexp_sd(_mm_setzero_pd(), _mm_set_sd(rows[r * chunks]))));
    for (int v = 0; v < EXACT_VECTORS; ++v) {
      __m512i high = _mm512_loadu_si512(upper[r] + 16 * v);
      __m512i low = _mm512_loadu_si512(lower[r] + 16 * v);
      high = _mm512_add_epi32(high, _mm512_set1_epi32(EXACT_OFF));
      __m512 sum =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f),
                          _mm512_cvtepi32_ps(low));
      sum = _mm512_scalef_ps(sum, _mm512_add_ps(down, across[v]));
      _mm512_storeu_ps(out[r] + 16 * v, sum);
    }
  }
#else
  for (int r = 0; r < EXACT_ROWS; ++r)
    for (int j = 0; j < EXACT_COLUMNS; ++j) {
      float sum = 256.0f * (float)(upper[r][j] + EXACT_OFF);
      sum += (float)lower[r][j];
      out[r][j] = (float)(sum * (rows[r * chunks] * columns[j]));
    }
#endif
}

//===----------------------------------------------------------------------===//
// Products, fast
//===----------------------------------------------------------------------===//

struct exact {
  int64_t m, n, k;
  const uint16_t *a;
  const float *w; ///< weights in place of a; then columns have no units
  int64_t am, ak;
  const uint16_t *b;
  int64_t bk, bn;
  float *c;
  int64_t cm, cn;
  int64_t chunks, terms; ///< of k, and k up to a multiple of 4
  int64_t packed;        ///< terms that panels have, which are no fewer
  int32_t bytes;         ///< whether digits are packed for VNNI
  int64_t block;         ///< rows of a task
  double *units;         ///< of rows and chunks; with what follows, one room
  int32_t (*of_rows)[2]; ///< sums of their digits
  int16_t *left;         ///< their digits: of upper ones a plane, then of lower
  int32_t *of_terms;     ///< the units of rows of B, where A are weights
  int64_t next;
  int32_t phase, failed;
};

/// What is done, in this order; the first of weights alone.
enum { EXACT_UNITS, EXACT_LEFT, EXACT_PRODUCT };

static int64_t exact_down(const struct exact *p) {
  return (p->m + EXACT_ROWS - 1) / EXACT_ROWS * EXACT_ROWS;
}

/// How many terms chunk q has.
static int64_t exact_here(const struct exact *p, int64_t q) {
  int64_t left = p->k - q * EXACT_CHUNK;
  return left < EXACT_CHUNK ? left : EXACT_CHUNK;
}

/// Stores the digits of chunk q of row i of A.
static void exact_store(const struct exact *p, int64_t i, int64_t q,
                        const struct digits *d, double unit) {
  int64_t plane = exact_down(p) * p->terms;
  int64_t whole = (exact_here(p, q) + 3) / 4 * 4;
  int64_t to = i * p->terms + q * EXACT_CHUNK;
  int32_t high = 0, low = 0;
  for (int64_t e = 0; e < whole; ++e) {
    high += d->high[e];
    low += d->low[e];
  }
  p->units[i * p->chunks + q] = unit;
  p->of_rows[i * p->chunks + q][0] = high;
  p->of_rows[i * p->chunks + q][1] = low;
  if (p->bytes) {
    int8_t *bytes = (int8_t *)p->left;
    for (int64_t e = 0; e < whole; ++e) {
      bytes[to + e] = (int8_t)d->high[e];
      bytes[plane + to + e] = (int8_t)d->low[e];
    }
  } else {
    memcpy(p->left + to, d->high, (size_t)whole * sizeof *d->high);
    memcpy(p->left + plane + to, d->low, (size_t)whole * sizeof *d->low);
  }
}

/// Packs chunk q of the rows of a tile of A, of which some may be zeros below
/// it.
static void exact_pack_rows(const struct exact *p, int64_t i, int64_t q) {
  static const struct digits zeros;
  struct digits d;
  uint16_t work[EXACT_CHUNK];
  int64_t at = q * EXACT_CHUNK, here = exact_here(p, q);
  for (int64_t end = i + EXACT_ROWS; i < end; ++i)
    if (i < p->m)
      exact_store(p, i, q, &d,
                  find_digits(here,
                              gathered(here, p->a + i * p->am + at * p->ak,
                                       p->ak, work),
                              &d));
    else
      exact_store(p, i, q, &zeros, 1.0);
}

// Rows of weights that are packed at once, and what is between them in work: a
// line of the cache has numbers of so many rows that are neighbours in memory.
enum { EXACT_TASK = 16, EXACT_APART = EXACT_CHUNK + 16 };

typedef float eight_floats __attribute__((vector_size(32)));

/// Copies eight columns of eight numbers, which are across apart, into rows:
/// neighbours change places in ones, then in twos, then in fours.
static void turn_floats(const float *from, int64_t across, float *to) {
  eight_floats x[8], y[8];
  for (int i = 0; i < 8; ++i)
    memcpy(x + i, from + i * across, sizeof *x);
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    y[i + 1] =
        __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; ++i)
    if (!(i & 2)) {
      eight_floats a = y[i], b = y[i + 2];
      x[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      x[i + 2] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; ++i) {
    eight_floats a = x[i], b = x[i + 4];
    y[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    y[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i)
    memcpy(to + i * EXACT_APART, y + i, sizeof *y);
}

/// Copies rows of weights, whose terms are ak apart, so that terms are
/// neighbours.
static void turn_weights(int64_t here, int64_t rows, const float *w, int64_t am,
                         int64_t ak, float *to) {
  int64_t e = 0;
  if (am == 1 && rows == EXACT_TASK)
    for (; e + 8 <= here; e += 8)
      for (int64_t r = 0; r < EXACT_TASK; r += 8)
        turn_floats(w + e * ak + r, ak, to + r * EXACT_APART + e);
  for (; e < here; ++e)
    for (int64_t r = 0; r < rows; ++r)
      to[r * EXACT_APART + e] = w[r * am + e * ak];
}

/// Packs chunk q of the rows of weights of a task.
static void exact_pack_weights(const struct exact *p, int64_t i, int64_t q) {
  static const struct digits zeros;
  struct digits d;
  float work[EXACT_TASK * EXACT_APART];
  int64_t at = q * EXACT_CHUNK, here = exact_here(p, q);
  int64_t rows = p->m - i < EXACT_TASK ? p->m - i : EXACT_TASK;
  int64_t end = exact_down(p) - i < EXACT_TASK ? exact_down(p) - i : EXACT_TASK;
  const float *w = p->w + i * p->am + at * p->ak;
  int gathers = p->ak != 1;
  if (gathers)
    turn_weights(here, rows, w, p->am, p->ak, work);
  for (int64_t r = 0; r < end; ++r)
    if (r < rows)
      exact_store(p, i + r, q, &d,
                  find_weights(here,
                               gathers ? work + r * EXACT_APART : w + r * p->am,
                               p->of_terms + at, &d));
    else
      exact_store(p, i + r, q, &zeros, 1.0);
}

/// Finds the units of rows of B, of which count begin at a term.
static void exact_find_units(const struct exact *p, int64_t term,
                             int64_t count) {
  for (int64_t e = term; e < term + count; ++e) {
    const uint16_t *row = p->b + e * p->bk;
    uint16_t top = 0;
    for (int64_t j = 0; j < p->n; ++j) {
      uint16_t magnitude = row[j * p->bn] & 0x7FFF;
      top = magnitude > top ? magnitude : top;
    }
    int32_t unit = ref_unit(1, &top, 1);
    p->of_terms[e] = unit == EXACT_BROKEN ? EXACT_NO_UNIT : unit;
  }
}

/// What turns the numbers of each column of a panel into integers: two factors,
/// because one may lie beyond the powers of float32. Numbers of a column with
/// an infinity or a NaN are cleared.
struct scales {
  float one[EXACT_COLUMNS], other[EXACT_COLUMNS];
  uint32_t kept[EXACT_COLUMNS];
};

/// Sets what turns numbers with a unit into integers.
static void set_scales(int64_t i, int32_t unit, int broken,
                       struct scales *found) {
  int32_t half = (-unit) >> 1;
  found->one[i] = (float)exact_power(half);
  found->other[i] = (float)exact_power(-unit - half);
  found->kept[i] = broken ? 0 : 0xFFFFFFFF;
}

/// The units of columns whose terms are bk apart, and neighbours each other's.
static void find_scales(int64_t here, const uint16_t *b, int64_t bk,
                        struct scales *found, double *units) {
  uint16_t top[EXACT_COLUMNS] = {0};
  for (int64_t e = 0; e < here; ++e)
    for (int64_t i = 0; i < EXACT_COLUMNS; ++i) {
      uint16_t magnitude = b[e * bk + i] & 0x7FFF;
      top[i] = magnitude > top[i] ? magnitude : top[i];
    }
  for (int64_t i = 0; i < EXACT_COLUMNS; ++i) {
    int32_t unit = ref_unit(1, top + i, 1);
    int broken = unit == EXACT_BROKEN;
    unit = broken ? 0 : unit;
    set_scales(i, unit, broken, found);
    units[i] = broken ? NAN : exact_power(unit);
  }
}

/// Packs fours or pairs of the terms of columns that are neighbours in memory.
/// What makes integers of them is known for each column, or for each term by
/// its unit.
static inline __attribute__((always_inline)) void
exact_pack_across(const struct exact *p, int64_t here, const uint16_t *b,
                  int64_t bk, const struct scales *by, const int32_t *of_terms,
                  int16_t *to) {
  static const uint16_t zeros[EXACT_COLUMNS];
  int64_t whole = (here + 3) / 4 * 4, plane = whole * EXACT_COLUMNS;
  int64_t width = p->bytes ? 4 : 2;
  for (int64_t e = 0; e < whole; e += width) {
    uint32_t high[EXACT_COLUMNS] = {0}, low[EXACT_COLUMNS] = {0};
    uint32_t pairs[EXACT_COLUMNS] = {0};
    for (int64_t d = 0; d < width; ++d) {
      const uint16_t *row = e + d < here ? b + (e + d) * bk : zeros;
      struct scales term;
      if (of_terms) {
        int32_t unit = e + d < here ? of_terms[e + d] : 0;
        int broken = unit == EXACT_NO_UNIT;
        set_scales(0, broken ? 0 : unit, broken, &term);
      }
      const struct scales *s = of_terms ? &term : by;
      for (int64_t i = 0; i < EXACT_COLUMNS; ++i) {
        int64_t at = of_terms ? 0 : i;
        uint32_t bits = ((uint32_t)row[i] << 16) & s->kept[at];
        float y;
        memcpy(&y, &bits, sizeof y);
        y = y * s->one[at] * s->other[at] + 0x1.8p23f;
        memcpy(&bits, &y, sizeof bits);
        int32_t q = (int32_t)(bits << 16) >> 16, h = (q + 128) >> 8;
        uint32_t l = (uint32_t)(q - 256 * h);
        if (p->bytes) {
          high[i] |= ((uint32_t)(h + 128) & 0xFF) << (8 * d);
          low[i] |= ((l + 128) & 0xFF) << (8 * d);
        } else {
          high[i] |= ((uint32_t)h & 0xFFFF) << (16 * d);
          low[i] |= (l & 0xFFFF) << (16 * d);
          pairs[i] |= ((uint32_t)q & 0xFFFF) << (16 * d);
        }
      }
    }
    if (p->bytes) {
      uint8_t *bytes = (uint8_t *)to + e * EXACT_COLUMNS;
      memcpy(bytes, high, sizeof high);
      memcpy(bytes + plane, low, sizeof low);
    } else {
      memcpy(to + e * EXACT_COLUMNS, pairs, sizeof pairs);
      memcpy(to + plane + e * EXACT_COLUMNS, high, sizeof high);
      memcpy(to + 2 * plane + e * EXACT_COLUMNS, low, sizeof low);
    }
  }
}

typedef uint16_t eight __attribute__((vector_size(16)));

/// Copies eight columns of eight numbers, which are across apart, into rows of
/// a panel: neighbours change places in ones, then in twos, then in fours.
static void turn_eight(const uint16_t *from, int64_t across, uint16_t *to) {
  eight x[8], y[8];
  for (int i = 0; i < 8; ++i)
    memcpy(x + i, from + i * across, sizeof *x);
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 2, 10, 3, 11);
    y[i + 1] =
        __builtin_shufflevector(x[i], x[i + 1], 4, 12, 5, 13, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int h = 0; h < 2; ++h) {
      eight a = y[i + h], b = y[i + h + 2];
      x[i + 2 * h] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 2, 3, 10, 11);
      x[i + 2 * h + 1] =
          __builtin_shufflevector(a, b, 4, 5, 12, 13, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; ++i) {
    eight a = x[i], b = x[i + 4];
    y[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    y[1] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    memcpy(to + 2 * i * EXACT_COLUMNS, y, sizeof *y);
    memcpy(to + (2 * i + 1) * EXACT_COLUMNS, y + 1, sizeof *y);
  }
}

typedef uint16_t exact_edge[EXACT_CHUNK][EXACT_COLUMNS];

/// Copies columns of a chunk, with zeros beyond the last one, so that they are
/// neighbours.
static void turn_columns(int64_t here, int64_t columns, const uint16_t *b,
                         int64_t bk, int64_t bn, exact_edge to) {
  if (columns < EXACT_COLUMNS)
    memset(to, 0, sizeof(exact_edge));
  int64_t e = 0, turned = columns / 8 * 8;
  if (bk == 1)
    for (; e + 8 <= here; e += 8) {
      for (int64_t i = 0; i < turned; i += 8)
        turn_eight(b + e + i * bn, bn, to[e] + i);
      for (int64_t i = turned; i < columns; ++i)
        for (int64_t d = e; d < e + 8; ++d)
          to[d][i] = b[d + i * bn];
    }
  for (; e < here; ++e)
    for (int64_t i = 0; i < columns; ++i)
      to[e][i] = b[e * bk + i * bn];
}

/// Packs a chunk of a panel of columns of B, whose units it stores.
static void exact_pack_columns(const struct exact *p, int64_t j, int64_t at,
                               int64_t here, int16_t *to, double *units) {
  int64_t columns = p->n - j < EXACT_COLUMNS ? p->n - j : EXACT_COLUMNS;
  const uint16_t *b = p->b + at * p->bk + j * p->bn;
  int64_t bk = p->bk;
  exact_edge edge;
  if (p->bn != 1 || columns < EXACT_COLUMNS) {
    turn_columns(here, columns, b, bk, p->bn, edge);
    b = edge[0];
    bk = EXACT_COLUMNS;
  }
  struct scales by;
  if (p->w) {
    for (int64_t i = 0; i < EXACT_COLUMNS; ++i)
      units[i] = 1.0;
    exact_pack_across(p, here, b, bk, NULL, p->of_terms + at, to);
  } else {
    find_scales(here, b, bk, &by, units);
    exact_pack_across(p, here, b, bk, &by, NULL, to);
  }
}

/// Elements of 16 bits that a packed term of a column takes.
static int64_t exact_planes(const struct exact *p) { return p->bytes ? 1 : 3; }

typedef float exact_tile[EXACT_ROWS][EXACT_COLUMNS];

/// The sums of a tile over a chunk in float32.
static void tile_chunk(const struct exact *p, int64_t i, int64_t q,
                       const int16_t *b, const double *columns,
                       exact_tile out) {
  exact_sums upper, lower;
  int64_t at = q * EXACT_CHUNK, from = i * p->terms + at;
  int64_t here = p->terms - at < EXACT_CHUNK ? p->terms - at : EXACT_CHUNK;
  int64_t plane = exact_down(p) * p->terms, place = i * p->chunks + q;
  int64_t right = p->packed - at < EXACT_CHUNK ? p->packed - at : EXACT_CHUNK;
#ifdef EXACT_BYTES
  if (p->bytes) {
    const int8_t *high = (const int8_t *)p->left + from;
    exact_bytes(here / 4, high, high + plane, p->terms, p->of_rows + place,
                p->chunks, (const uint8_t *)b, right * EXACT_COLUMNS, upper,
                lower);
  } else
#endif
    exact_pairs(here / 2, p->left + from, p->left + plane + from, p->terms, b,
                right * EXACT_COLUMNS, upper, lower);
  join_sums(upper, lower, p->units + place, p->chunks, columns, out);
}

/// A tile of the product in level[0]; there are as many levels as a tree has.
static void exact_tile_of(const struct exact *p, int64_t i, const int16_t *b,
                          const double *columns, exact_tile *level) {
  int64_t waiting = 0, step = EXACT_CHUNK * EXACT_COLUMNS * exact_planes(p);
  for (int64_t q = 0; q < p->chunks; ++q, ++waiting) {
    tile_chunk(p, i, q, b + q * step, columns + q * EXACT_COLUMNS,
               level[waiting]);
    for (int64_t c = q; c & 1; c >>= 1, --waiting)
      for (int r = 0; r < EXACT_ROWS; ++r)
        for (int j = 0; j < EXACT_COLUMNS; ++j)
          level[waiting - 1][r][j] += level[waiting][r][j];
  }
  while (--waiting > 0)
    for (int r = 0; r < EXACT_ROWS; ++r)
      for (int j = 0; j < EXACT_COLUMNS; ++j)
        level[waiting - 1][r][j] += level[waiting][r][j];
}

/// Floats that a packed panel of columns takes: units, then digits.
static int64_t exact_panel_size(const struct exact *p) {
  return 2 * p->chunks * EXACT_COLUMNS +
         p->terms * EXACT_COLUMNS * exact_planes(p) / 2;
}

/// Packs a panel of columns of B, which begin at column j.
static void exact_pack_panel(const struct exact *p, int64_t j, float *panel) {
  int16_t *to = (int16_t *)(panel + 2 * p->chunks * EXACT_COLUMNS);
  int64_t step = EXACT_CHUNK * EXACT_COLUMNS * exact_planes(p);
  for (int64_t q = 0; q < p->chunks; ++q)
    exact_pack_columns(p, j, q * EXACT_CHUNK, exact_here(p, q), to + q * step,
                       (double *)panel + q * EXACT_COLUMNS);
}

/// Computes rows of A from first to end for the panel of columns from j on.
static void exact_multiply(const struct exact *p, int64_t first, int64_t end,
                           int64_t j, const float *panel) {
  exact_tile level[LEVELS + 1];
  int64_t chunks = (p->packed + EXACT_CHUNK - 1) / EXACT_CHUNK;
  int64_t columns = p->n - j < EXACT_COLUMNS ? p->n - j : EXACT_COLUMNS;
  for (int64_t i = first; i < end; i += EXACT_ROWS) {
    exact_tile_of(p, i, (const int16_t *)(panel + 2 * chunks * EXACT_COLUMNS),
                  (const double *)panel, level);
    for (int64_t r = 0; r < EXACT_ROWS && i + r < end; ++r) {
      float *to = p->c + (i + r) * p->cm + j * p->cn;
      if (p->cn == 1)
        memcpy(to, level[0][r], (size_t)columns * sizeof *to);
      else
        for (int64_t e = 0; e < columns; ++e)
          to[e * p->cn] = level[0][r][e];
    }
  }
}

static void exact_part(void *data) {
  struct exact *p = data;
  int64_t task, rows = p->w ? EXACT_TASK : EXACT_ROWS;
  int64_t tasks = (p->m + rows - 1) / rows * p->chunks;
  if (p->phase == EXACT_UNITS) {
    while ((task = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) <
           p->chunks)
      exact_find_units(p, task * EXACT_CHUNK, exact_here(p, task));
    return;
  }
  if (p->phase == EXACT_LEFT) {
    while ((task = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < tasks)
      (p->w ? exact_pack_weights : exact_pack_rows)(p, task / p->chunks * rows,
                                                    task % p->chunks);
    return;
  }
  int64_t across = (p->n + EXACT_COLUMNS - 1) / EXACT_COLUMNS;
  int64_t blocks = (p->m + p->block - 1) / p->block;
  float *panel = take_room(exact_panel_size(p));
  if (!panel) {
    __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  while ((task = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) <
         across * blocks) {
    int64_t i = task / across * p->block, j = task % across * EXACT_COLUMNS;
    exact_pack_panel(p, j, panel);
    exact_multiply(p, i, i + p->block < p->m ? i + p->block : p->m, j, panel);
  }
  give_room(panel);
}

//===----------------------------------------------------------------------===//
// Entry
//===----------------------------------------------------------------------===//

/// Whether digits are packed in bytes: this CPU multiplies them.
static int32_t takes_bytes(void) {
#ifdef EXACT_BYTES
  static int32_t found; // 0 is unknown
  int32_t has = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (!has) {
    has = __builtin_cpu_supports("avx512vnni") ? 1 : 2;
    __atomic_store_n(&found, has, __ATOMIC_RELAXED);
  }
  return has == 1;
#else
  return 0;
#endif
}

/// Rows of a task: all, unless panels are too few for the threads.
static int64_t exact_block(int64_t m, int64_t n, const struct threads *t) {
  int64_t panels = (n + EXACT_COLUMNS - 1) / EXACT_COLUMNS, block = m;
  while (panels * ((m + block - 1) / block) < 4 * t->count && block > 64)
    block = (block / 2 + EXACT_ROWS - 1) / EXACT_ROWS * EXACT_ROWS;
  return block;
}

/// Sets how terms are packed, whose number is set.
static void exact_set_terms(struct exact *p) {
  p->chunks = (p->k + EXACT_CHUNK - 1) / EXACT_CHUNK;
  p->terms = (p->k + 3) / 4 * 4;
  p->bytes = takes_bytes();
}

/// Floats that the packed rows of A take.
static int64_t exact_left_size(const struct exact *p) {
  return exact_down(p) * (4 * p->chunks + p->terms);
}

/// Sets where rows of A are packed.
static void exact_set_left(struct exact *p, float *room) {
  int64_t units = exact_down(p) * p->chunks;
  p->units = (double *)room;
  p->of_rows = (int32_t(*)[2])(room + 2 * units);
  p->left = (int16_t *)(room + 4 * units);
}

/// Computes a product or weighted sums, of which the matrices and their strides
/// are set. Returns 0, or 1 if there was no memory.
static int exact_run(struct exact *p, const struct threads *t) {
  exact_set_terms(p);
  p->packed = p->terms;
  p->block = exact_block(p->m, p->n, t);
  int64_t left = exact_left_size(p);
  float *room = take_room(left + (p->w ? p->terms : 0));
  if (!room)
    return 1;
  exact_set_left(p, room);
  p->of_terms = (int32_t *)(room + left);
  for (p->phase = p->w ? EXACT_UNITS : EXACT_LEFT; p->phase <= EXACT_PRODUCT;
       ++p->phase) {
    p->next = 0;
    share_out(t, p->m * p->n * p->k / 32, exact_part, p);
  }
  give_room(room);
  return p->failed;
}

/// Returns 0, or 1 if there was no memory.
EXPORT int fast_exact_mm(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                         int64_t am, int64_t ak, const uint16_t *b, int64_t bk,
                         int64_t bn, float *c, const struct threads *t) {
  if (m == 0 || n == 0)
    return 0;
  if (k == 0) {
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    return 0;
  }
  struct exact p = {.m = m,
                    .n = n,
                    .k = k,
                    .a = a,
                    .am = am,
                    .ak = ak,
                    .b = b,
                    .bk = bk,
                    .bn = bn,
                    .c = c,
                    .cm = n,
                    .cn = 1};
  // Rows are padded to fewer than columns are.
  if (n < EXACT_COLUMNS / 2 && n < m)
    p = (struct exact){.m = n,
                       .n = m,
                       .k = k,
                       .a = b,
                       .am = bn,
                       .ak = bk,
                       .b = a,
                       .bk = ak,
                       .bn = am,
                       .c = c,
                       .cm = 1,
                       .cn = n};
  return exact_run(&p, t);
}

/// Products of count matrices, one after the other. Returns as fast_exact_mm
/// does.
EXPORT int fast_exact_bmm(int64_t count, int64_t m, int64_t n, int64_t k,
                          const uint16_t *a, int64_t ab, int64_t am, int64_t ak,
                          const uint16_t *b, int64_t bb, int64_t bk, int64_t bn,
                          float *c, const struct threads *t) {
  int failed = 0;
  for (int64_t i = 0; i < count && !failed; ++i)
    failed = fast_exact_mm(m, n, k, a + i * ab, am, ak, b + i * bb, bk, bn,
                           c + i * m * n, t);
  return failed;
}

/// Weighted sums of the rows of count matrices, one after the other. Returns as
/// fast_exact_mm does.
EXPORT int fast_exact_weighted(int64_t count, int64_t m, int64_t n, int64_t k,
                               const float *w, int64_t wb, int64_t wm,
                               int64_t wk, const uint16_t *v, int64_t vb,
                               int64_t vk, int64_t vn, float *y,
                               const struct threads *t) {
  if (m == 0 || n == 0)
    return 0;
  if (k == 0)
    memset(y, 0, (size_t)(count * m * n) * sizeof *y);
  int failed = 0;
  for (int64_t i = 0; i < count && k && !failed; ++i) {
    struct exact p = {.m = m,
                      .n = n,
                      .k = k,
                      .w = w + i * wb,
                      .am = wm,
                      .ak = wk,
                      .b = v + i * vb,
                      .bk = vk,
                      .bn = vn,
                      .c = y + i * m * n,
                      .cm = n,
                      .cn = 1};
    failed = exact_run(&p, t);
  }
  return failed;
}

#endif
