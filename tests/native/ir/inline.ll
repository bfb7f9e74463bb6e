; SPDX-License-Identifier: Apache-2.0
; Forms that udf-replace kept as calls are inlined, but not where the caller forbids it, nor
; forms without a result or too large ones; nothing keeps a form alive that nobody calls any more.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-replace<early>,udf-inline,globaldce,verify' \
; RUN:   -udf-replace-map=%t/map.json -S %t/user.ll | %FileCheck %s --implicit-check-not=compiler.used \
; RUN:   --implicit-check-not='define internal <8 x float>'
; The controls: without the pass, without a map, and for a form that is too large, calls stay.
; RUN: %opt -passes='udf-replace<early>,verify' -udf-replace-map=%t/map.json -S %t/user.ll \
; RUN:   | %FileCheck %s --check-prefixes=KEPT,USED
; RUN: %opt -passes='udf-replace<early>,udf-inline,verify' -udf-replace-map=%t/map.json \
; RUN:   -udf-inline-limit=1 -S %t/user.ll | %FileCheck %s --check-prefix=KEPT
; RUN: %opt -passes=verify -S %t/user.ll -o %t/plain.ll
; RUN: %opt -passes='udf-inline,verify' -S %t/user.ll -o %t/same.ll
; RUN: diff %t/plain.ll %t/same.ll

; USED: @llvm.compiler.used = {{.*}}@__udf_expf_v8

; CHECK-LABEL: define float @caller(float %x)
; CHECK-NEXT: %[[Y:.*]] = fmul float %x, 3.0
; CHECK-NEXT: ret float %[[Y]]
; KEPT-LABEL: define float @caller(float %x)
; KEPT: call float @__udf_expf(float %x)
; CHECK-LABEL: define float @no_optimiser(float %x)
; CHECK-NEXT: call float @__udf_expf(float %x)
; CHECK-LABEL: define float @small(float %x)
; CHECK-NEXT: call float @__udf_expf(float %x)
; CHECK-LABEL: define void @array(
; CHECK-NEXT: call void @__udf_expf_array(
; CHECK: define internal float @__udf_expf(

;--- map.json
{"bitcode": "udf.ll", "targets": {"expf": "__udf_expf", "vmsExp": "__udf_expf_array"}}

;--- udf.ll
target triple = "x86_64-unknown-linux-gnu"
define float @__udf_expf(float %x) #0 {
  %y = fmul float %x, 3.0
  ret float %y
}
define <8 x float> @__udf_expf_v8(<8 x float> %x) #0 {
  %y = fmul <8 x float> %x, <float 3.0, float 3.0, float 3.0, float 3.0, float 3.0, float 3.0, float 3.0, float 3.0>
  ret <8 x float> %y
}
define void @__udf_expf_array(ptr %p) #0 {
  store float 0.0, ptr %p
  ret void
}
attributes #0 = { nounwind "target-cpu"="x86-64-v3" }

;--- user.ll
target triple = "x86_64-unknown-linux-gnu"
declare float @expf(float)
declare void @vmsExp(ptr)
define float @caller(float %x) #0 {
  %y = call float @expf(float %x)
  ret float %y
}
define float @no_optimiser(float %x) #1 {
  %y = call float @expf(float %x)
  ret float %y
}
define float @small(float %x) #2 {
  %y = call float @expf(float %x)
  ret float %y
}
define void @array(ptr %p) #0 {
  call void @vmsExp(ptr %p)
  ret void
}
attributes #0 = { nounwind "target-cpu"="x86-64-v3" }
attributes #1 = { noinline nounwind optnone "target-cpu"="x86-64-v3" }
attributes #2 = { minsize nounwind "target-cpu"="x86-64-v3" }
