//===- libstdcxx.h - What builds ask of the C++ standard library ----------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Headers of torch call functions that libstdc++ has only since gcc 9 and 11.
// These definitions take their places within the build, and call the functions
// that came before them, so that it also loads where libstdc++ is older
// (manylinux_2_28 has that of gcc 8). Nothing outside of the build sees them.
//
//===----------------------------------------------------------------------===//
#ifndef UDFTORCH_LIBSTDCXX_H
#define UDFTORCH_LIBSTDCXX_H

#include <new>
#include <sstream>

#ifdef __GLIBCXX__

// Within the assembly of the build the name means the function. A definition
// in C++ would meet the one that the header offers for inlining.
#define UDFTORCH_STANDS_FOR(name, function) __asm__(".set " name ", " #function)

extern "C" {

// std::ostringstream::ostringstream(), gcc 9
__attribute__((visibility("hidden"), used)) inline void
udfold_stream(void *This) {
  new (This) std::ostringstream(std::ios_base::out);
}

// std::__throw_bad_array_new_length(), gcc 11
[[noreturn]] __attribute__((visibility("hidden"), used)) inline void
udfold_length() {
  throw std::bad_alloc();
}

} // extern "C"

// std::stringbuf::str() &&, gcc 11: str() const came before it. Both get the
// place of the result, and the buffer.
std::string
udfoldCopied(const std::stringbuf *) __asm__("_ZNKSt7__cxx1115basic_stringbufIc"
                                             "St11char_traitsIcESaIcEE3strEv");
__attribute__((visibility("hidden"), used)) inline std::string
udfoldMoved(std::stringbuf *This) __asm__("udfold_moved");
inline std::string udfoldMoved(std::stringbuf *This) {
  return udfoldCopied(This);
}

UDFTORCH_STANDS_FOR(
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev",
    udfold_stream);
UDFTORCH_STANDS_FOR("_ZNOSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3"
                    "strEv",
                    udfold_moved);
UDFTORCH_STANDS_FOR("_ZSt28__throw_bad_array_new_lengthv", udfold_length);

#endif
#endif
