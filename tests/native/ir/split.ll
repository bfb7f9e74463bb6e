; SPDX-License-Identifier: Apache-2.0
; A function of libdevice gets parts made of itself; udf-replace gives them other bodies.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-split,verify' -udf-split-functions=__nv_expf,__nv_atan2f \
; RUN:   -S %t/libdevice.ll | %FileCheck %s --implicit-check-not=__nv_udf_logf
; RUN: %opt -passes='udf-split,udf-replace,verify' -udf-split-functions=__nv_expf,__nv_atan2f \
; RUN:   -udf-replace-map=%t/map.json -S %t/libdevice.ll | %FileCheck %s --check-prefix=BOUND
; The control: without the pass udf-replace finds no part to bind.
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/map.json -S %t/libdevice.ll \
; RUN:   | %FileCheck %s --check-prefix=CONTROL
; CONTROL-NOT: __nv_udf_

; CHECK-LABEL: define float @__nv_udf_expf_value(float %a)
; CHECK-NEXT: %[[R:.*]] = call float @__nv_expf(float %a)
; CHECK-NEXT: ret float %[[R]]
; CHECK-LABEL: define i32 @__nv_udf_expf_hard(float %a)
; CHECK-NEXT: ret i32 0
; CHECK-LABEL: define float @__nv_udf_expf_rest(float %a)
; CHECK-NEXT: call float @__nv_expf(float %a)
; CHECK-LABEL: define float @__nv_udf_atan2f_value(float %a, float %b)
; CHECK-NEXT: call fastcc float @__nv_atan2f(float %a, float %b)
; CHECK-LABEL: define i32 @__nv_udf_atan2f_hard(float %a, float %b)

; BOUND-LABEL: define i32 @__nv_udf_expf_hard(float %a)
; BOUND-NEXT: entry:
; BOUND-NEXT: call i32 @__udf_expf_hard(float %a)
; BOUND-LABEL: define float @__nv_udf_atan2f_value(
; BOUND-NEXT: call fastcc float @__nv_atan2f(

;--- map.json
{"bitcode": "udf.ll", "targets": {"__nv_udf_expf_hard": "__udf_expf_hard"}}

;--- udf.ll
define i32 @__udf_expf_hard(float %x) {
  ret i32 1
}

;--- libdevice.ll
define float @__nv_expf(float %a) {
  ret float %a
}
define float @__nv_logf(float %a) {
  ret float %a
}
define fastcc float @__nv_atan2f(float %a, float %b) {
  ret float %a
}
