/* glibc.h - The versions of C library functions that builds ask for
 * SPDX-License-Identifier: Apache-2.0
 *
 * glibc 2.34 moved functions of libdl and libpthread into libc, under a new
 * version, and keeps the old one. Whoever asks for the old one also runs with
 * an older glibc.
 */
#ifndef UDFTORCH_GLIBC_H
#define UDFTORCH_GLIBC_H

#if defined(__aarch64__)
#define UDFTORCH_OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.17")
#else
#define UDFTORCH_OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.2.5")
#endif

#endif
