// SPDX-License-Identifier: Apache-2.0
// Square matrix product in plain C++, for benches.compile_matmul: what a loop
// reaches that the compiler vectorises, on all threads.
//
// Four rows times 64 columns of the result stay in registers (at 16 lanes: 16
// of 32) while a panel of DEPTH rows of b, 64 KiB, is walked through.

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t ROWS = 4;
constexpr std::size_t COLUMNS = 64;
constexpr std::size_t DEPTH = 256;

void whole(const float *a, const float *b, float *c, std::size_t n,
           std::size_t i, std::size_t j, std::size_t k0, std::size_t k1) {
  float sum[ROWS][COLUMNS];
  for (std::size_t r = 0; r < ROWS; ++r)
    for (std::size_t s = 0; s < COLUMNS; ++s)
      sum[r][s] = c[(i + r) * n + j + s];
  for (std::size_t k = k0; k < k1; ++k)
    for (std::size_t r = 0; r < ROWS; ++r)
      for (std::size_t s = 0; s < COLUMNS; ++s)
        sum[r][s] += a[(i + r) * n + k] * b[k * n + j + s];
  for (std::size_t r = 0; r < ROWS; ++r)
    for (std::size_t s = 0; s < COLUMNS; ++s)
      c[(i + r) * n + j + s] = sum[r][s];
}

void rest(const float *a, const float *b, float *c, std::size_t n,
          std::size_t i0, std::size_t i1, std::size_t j0, std::size_t j1,
          std::size_t k0, std::size_t k1) {
  for (std::size_t i = i0; i < i1; ++i)
    for (std::size_t k = k0; k < k1; ++k)
      for (std::size_t j = j0; j < j1; ++j)
        c[i * n + j] += a[i * n + k] * b[k * n + j];
}

void rows(const float *a, const float *b, float *c, std::size_t n,
          std::size_t first, std::size_t last) {
  std::fill(c + first * n, c + last * n, 0.0f);
  const std::size_t i_whole = first + (last - first) / ROWS * ROWS;
  const std::size_t j_whole = n / COLUMNS * COLUMNS;
  for (std::size_t k0 = 0; k0 < n; k0 += DEPTH) {
    const std::size_t k1 = std::min(n, k0 + DEPTH);
    for (std::size_t j = 0; j < j_whole; j += COLUMNS)
      for (std::size_t i = first; i < i_whole; i += ROWS)
        whole(a, b, c, n, i, j, k0, k1);
    rest(a, b, c, n, first, i_whole, j_whole, n, k0, k1);
    rest(a, b, c, n, i_whole, last, 0, n, k0, k1);
  }
}

} // namespace

// Writes the product of a and b, n x n row-major, to c, which overlaps neither.
extern "C" void bench_matmul(const float *a, const float *b, float *c,
                             std::size_t n, std::size_t threads) {
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t)
    running.emplace_back(rows, a, b, c, n, n * t / threads,
                         n * (t + 1) / threads);
  for (std::thread &thread : running)
    thread.join();
}
