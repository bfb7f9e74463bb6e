; SPDX-License-Identifier: Apache-2.0
; Uses of a target that is only declared are redirected: calls with all that they
; carry, invokes, and addresses. What the UDFs call themselves is left alone.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/map.json \
; RUN:   -udf-report=%t/report.json -S %t/user.ll | %FileCheck %s
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t/report.json
; RUN: %opt -passes='udf-replace,udf-replace,default<O2>,udf-replace' \
; RUN:   -udf-replace-map=%t/map.json -S %t/user.ll | %FileCheck %s --check-prefix=AGAIN

; CHECK: @table = global [2 x ptr] [ptr @__udf_expf, ptr @other]

; CHECK-LABEL: define float @calls
; CHECK: call float @__udf_expf(float %x) [ "tag"(i32 7) ], !annotation
; CHECK: call reassoc nnan float @__udf_expf(float %a) #[[SITE:[0-9]+]]
; CHECK-LABEL: define float @invokes
; CHECK: invoke float @__udf_expf(float %x)
; CHECK-LABEL: define ptr @addresses
; CHECK: call void @take(ptr @__udf_expf)
; CHECK: store ptr @__udf_expf, ptr %p
; CHECK: ret ptr @__udf_expf
; CHECK-LABEL: define <16 x float> @vectors
; CHECK: call <16 x float> @__udf_expf_v16(<16 x float> %x)
; CHECK-LABEL: define void @arrays
; CHECK: call void @__udf_expf_array(i64 %n, ptr %a, ptr %r, i64 0)
; CHECK-LABEL: define available_externally float @logf
; CHECK-LABEL: define float @calls_logf
; CHECK: call float @__udf_logf(float %x)
; CHECK-LABEL: define float @not_mapped
; CHECK: call float @sinf(float %x)

; CHECK: define internal float @__udf_expf(float %x)
; CHECK: call float @expf(float %x)

; A mapping to the old function's vector variants would bring that one back.
; CHECK: attributes #[[SITE]] = { "mine"="yes" }

; REPORT-DAG: {"addresses":4,"bodies":0,"calls":4,"intrinsics":0,{{.*}}"replacement":"__udf_expf",{{.*}}"target":"expf"}
; REPORT-DAG: {"addresses":0,"bodies":0,"calls":1,{{.*}}"target":"vsExp"}
; REPORT-DAG: {"addresses":0,"bodies":0,"calls":1,{{.*}}"target":"Sleef_expf16_u10"}
; REPORT-DAG: {"addresses":0,"bodies":0,"calls":1,{{.*}}"target":"logf"}

; No number of runs, before or after inlining, touches the UDF's own call.
; AGAIN: define {{.*}}float @not_mapped
; AGAIN: call float @expf(float

;--- map.json
{"bitcode": "udf.ll",
 "targets": {"expf": "__udf_expf", "logf": "__udf_logf", "vsExp": "__udf_expf_array",
             "Sleef_expf16_u10": "__udf_expf_v16"}}

;--- udf.ll
target triple = "x86_64-unknown-linux-gnu"
declare float @expf(float)
define float @__udf_expf(float %x) {
  %y = call float @expf(float %x)
  %z = fadd float %y, 1.0
  ret float %z
}
define float @__udf_logf(float %x) {
  ret float %x
}
define <16 x float> @__udf_expf_v16(<16 x float> %x) {
  ret <16 x float> %x
}
define void @__udf_expf_array(i64 %n, ptr %a, ptr %r, i64 %mode) {
  ret void
}

;--- user.ll
target triple = "x86_64-unknown-linux-gnu"
@table = global [2 x ptr] [ptr @expf, ptr @other]
declare float @expf(float)
declare float @sinf(float)
declare float @other(float)
declare void @take(ptr)
declare <16 x float> @Sleef_expf16_u10(<16 x float>)
declare void @vsExp(i64, ptr, ptr, i64)
declare i32 @__gxx_personality_v0(...)
define float @calls(float %x) {
  %a = call float @expf(float %x) [ "tag"(i32 7) ], !annotation !0
  %b = call reassoc nnan float @expf(float %a) #0
  ret float %b
}
define float @invokes(float %x) personality ptr @__gxx_personality_v0 {
  %a = invoke float @expf(float %x) to label %done unwind label %pad
done:
  ret float %a
pad:
  %l = landingpad { ptr, i32 } cleanup
  ret float 0.0
}
define ptr @addresses(ptr %p) {
  call void @take(ptr @expf)
  store ptr @expf, ptr %p
  ret ptr @expf
}
define <16 x float> @vectors(<16 x float> %x) {
  %y = call <16 x float> @Sleef_expf16_u10(<16 x float> %x)
  ret <16 x float> %y
}
define void @arrays(i64 %n, ptr %a, ptr %r) {
  call void @vsExp(i64 %n, ptr %a, ptr %r, i64 0)
  ret void
}
define available_externally float @logf(float %x) {
  ret float 0.0
}
define float @calls_logf(float %x) {
  %y = call float @logf(float %x)
  ret float %y
}
define float @not_mapped(float %x) {
  %y = call float @sinf(float %x)
  %z = call float @expf(float %y)
  ret float %z
}
attributes #0 = { "mine"="yes" "vector-function-abi-variant"="_ZGVdN8v_expf(old_v8)" }
!0 = !{!"kept"}
