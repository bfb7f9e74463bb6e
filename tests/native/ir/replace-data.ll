; SPDX-License-Identifier: Apache-2.0
; A module without code, which says of no CPU, still has its tables redirected.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/map.json -S %t/user.ll \
; RUN:   | %FileCheck %s

; CHECK: @table = constant [2 x ptr] [ptr @__udf_expf, ptr @sinf]
; CHECK: define internal float @__udf_expf(float %x) #[[CPU:[0-9]+]]
; CHECK: attributes #[[CPU]] = { {{.*}}"target-cpu"="x86-64-v3"

;--- map.json
{"bitcode": "udf.ll", "targets": {"expf": "__udf_expf"}}

;--- udf.ll
declare float @llvm.fma.f32(float, float, float)
define float @__udf_expf(float %x) #0 {
  %y = call float @llvm.fma.f32(float %x, float %x, float 1.0)
  ret float %y
}
attributes #0 = { "target-cpu"="x86-64-v3" }

;--- user.ll
@table = constant [2 x ptr] [ptr @expf, ptr @sinf]
declare float @expf(float)
declare float @sinf(float)
