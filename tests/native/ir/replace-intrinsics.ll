; SPDX-License-Identifier: Apache-2.0
; Calls of intrinsics become calls of the form for their type; a vector that the
; map has no form for is cut into pieces, spare lanes repeating the first one.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/map.json \
; RUN:   -udf-report=%t/report.json -S %t/user.ll | %FileCheck %s
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t/report.json
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/scalar.json -S %t/user.ll \
; RUN:   | %FileCheck %s --check-prefix=SCALAR

; CHECK-LABEL: define float @one
; CHECK: %y = call nnan float @__udf_expf(float %x), !fpmath
; CHECK-LABEL: define <8 x float> @eight
; CHECK: call reassoc <8 x float> @__udf_expf_v8(<8 x float> %x)
; CHECK-LABEL: define <4 x float> @four
; CHECK: %[[WIDE:.*]] = shufflevector <4 x float> %x, <4 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 0, i32 0, i32 0, i32 0>
; CHECK: %[[Y:.*]] = call fast <8 x float> @__udf_expf_v8(<8 x float> %[[WIDE]])
; CHECK: shufflevector <8 x float> %[[Y]], <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
; CHECK-LABEL: define <12 x float> @twelve
; CHECK: call <8 x float> @__udf_expf_v8
; CHECK: <i32 8, i32 9, i32 10, i32 11, i32 8, i32 8, i32 8, i32 8>
; CHECK: call <8 x float> @__udf_expf_v8
; The v16 form is for a CPU that this function is not compiled for.
; CHECK-LABEL: define <16 x float> @sixteen
; CHECK: call <8 x float> @__udf_expf_v8
; CHECK: call <8 x float> @__udf_expf_v8
; CHECK: ret <16 x float>
; CHECK-LABEL: define double @other_type
; CHECK: call double @llvm.exp.f64
; CHECK-LABEL: define <2 x float> @pair
; CHECK: call <2 x float> @llvm.pow.v2f32

; SCALAR-LABEL: define <4 x float> @four
; SCALAR-COUNT-4: call fast float @__udf_expf(float %
; SCALAR-LABEL: define <12 x float> @twelve
; SCALAR-COUNT-12: call float @__udf_expf(float %
; SCALAR-LABEL: define <2 x float> @pair
; SCALAR: %[[A:.*]] = extractelement <2 x float> %x, i64 0
; SCALAR: %[[B:.*]] = extractelement <2 x float> %y, i64 0
; SCALAR: call float @__udf_powf(float %[[A]], float %[[B]])

; What the UDF itself calls is no target.
; CHECK-LABEL: define internal float @__udf_expf(
; CHECK: call float @llvm.exp.f32
; SCALAR-LABEL: define internal float @__udf_expf(
; SCALAR: call float @llvm.exp.f32

; REPORT-DAG: "intrinsics":1,{{.*}}"replacement":"__udf_expf",{{.*}}"target":"llvm.exp.f32"
; REPORT-DAG: "intrinsics":1,{{.*}}"replacement":"__udf_expf_v8",{{.*}}"target":"llvm.exp.v12f32"

;--- map.json
{"bitcode": "udf.ll",
 "targets": {"llvm.exp.f32": "__udf_expf", "llvm.exp.v8f32": "__udf_expf_v8",
             "llvm.exp.v16f32": "__udf_expf_v16"}}

;--- scalar.json
{"bitcode": "udf.ll", "targets": {"llvm.exp.f32": "__udf_expf", "llvm.pow.f32": "__udf_powf"}}

;--- udf.ll
target triple = "x86_64-unknown-linux-gnu"
declare float @llvm.exp.f32(float)
define float @__udf_expf(float %x) {
  %y = call float @llvm.exp.f32(float %x)
  ret float %y
}
define float @__udf_powf(float %x, float %y) {
  ret float %x
}
define <8 x float> @__udf_expf_v8(<8 x float> %x) {
  ret <8 x float> %x
}
define <16 x float> @__udf_expf_v16(<16 x float> %x) {
  ret <16 x float> %x
}

;--- user.ll
target triple = "x86_64-unknown-linux-gnu"
declare float @llvm.exp.f32(float)
declare double @llvm.exp.f64(double)
declare <4 x float> @llvm.exp.v4f32(<4 x float>)
declare <8 x float> @llvm.exp.v8f32(<8 x float>)
declare <12 x float> @llvm.exp.v12f32(<12 x float>)
declare <16 x float> @llvm.exp.v16f32(<16 x float>)
declare <2 x float> @llvm.pow.v2f32(<2 x float>, <2 x float>)
define float @one(float %x) #0 {
  %y = call nnan float @llvm.exp.f32(float %x), !fpmath !0
  ret float %y
}
define <8 x float> @eight(<8 x float> %x) #0 {
  %y = call reassoc <8 x float> @llvm.exp.v8f32(<8 x float> %x)
  ret <8 x float> %y
}
define <4 x float> @four(<4 x float> %x) #0 {
  %y = call fast <4 x float> @llvm.exp.v4f32(<4 x float> %x)
  ret <4 x float> %y
}
define <12 x float> @twelve(<12 x float> %x) #0 {
  %y = call <12 x float> @llvm.exp.v12f32(<12 x float> %x)
  ret <12 x float> %y
}
define <16 x float> @sixteen(<16 x float> %x) #0 {
  %y = call <16 x float> @llvm.exp.v16f32(<16 x float> %x)
  ret <16 x float> %y
}
define double @other_type(double %x) #0 {
  %y = call double @llvm.exp.f64(double %x)
  ret double %y
}
define <2 x float> @pair(<2 x float> %x, <2 x float> %y) #0 {
  %z = call <2 x float> @llvm.pow.v2f32(<2 x float> %x, <2 x float> %y)
  ret <2 x float> %z
}
attributes #0 = { "target-cpu"="x86-64-v3" }
!0 = !{float 2.5}
