; SPDX-License-Identifier: Apache-2.0
; Without a manifest or a map the passes leave the module alone.
; RUN: %opt -passes=verify -S %s -o %t.plain
; RUN: %opt -passes='udf-widen,udf-replace,verify' -S %s -o %t.passed
; RUN: diff %t.plain %t.passed
; RUN: %opt -passes='default<O3>' -S %s | %FileCheck %s

; CHECK: call float @llvm.exp.f32(float %x)

declare float @llvm.exp.f32(float)

define float @f(float %x) {
  %y = call float @llvm.exp.f32(float %x)
  ret float %y
}
