; SPDX-License-Identifier: Apache-2.0
; In a whole pipeline: the loop vectoriser uses the vector forms of a scalar
; UDF, calls that the simplifier makes are caught, no intrinsic is left behind.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='default<O3>,verify' -udf-replace-map=%t/map.json \
; RUN:   -udf-report=%t/report.json -S %t/user.ll | %FileCheck %s \
; RUN:   --implicit-check-not='llvm.exp.' --implicit-check-not='llvm.exp2.'
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t/report.json
; RUN: %opt -passes='default<O3>' -S %t/user.ll | %FileCheck %s --check-prefix=CONTROL
; RUN: %opt -passes='default<O0>,verify' -udf-replace-map=%t/map.json -S %t/user.ll \
; RUN:   | %FileCheck %s --check-prefix=O0

; CHECK-LABEL: define void @loop
; CHECK: fmul <8 x float> %{{.*}}, {{splat \(float|<float}} 3.000000e+00
; CHECK: fmul float %{{.*}}, 3.000000e+00
; CHECK-LABEL: define void @slp
; CHECK: fmul <8 x float> %{{.*}}, {{splat \(float|<float}} 3.000000e+00
; CHECK-NOT: fmul float
; CHECK-LABEL: define {{.*}}float @becomes_exp2
; CHECK: fmul float %{{.*}}, 5.000000e+00

; Without the map the vectoriser takes the intrinsic, and pow becomes exp2.
; CONTROL-LABEL: define void @loop
; CONTROL: call <8 x float> @llvm.exp.v8f32
; CONTROL-LABEL: define {{.*}}float @becomes_exp2
; CONTROL: call float @{{(llvm.exp2.f32|exp2f)}}

; Unoptimised code calls the UDF.
; O0-LABEL: define void @loop
; O0: call float @__udf_expf(float
; O0-LABEL: define float @becomes_exp2
; O0: call float @powf

; REPORT-DAG: "stage":"early","target":"llvm.exp.f32"
; REPORT-DAG: "stage":"{{middle|late}}","target":"{{llvm.exp2.f32|exp2f}}"

;--- map.json
{"bitcode": "udf.ll",
 "targets": {"llvm.exp.f32": "__udf_expf", "llvm.exp2.f32": "__udf_exp2f", "exp2f": "__udf_exp2f"}}

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
define float @__udf_exp2f(float %x) #0 {
  %y = fmul float %x, 5.0
  ret float %y
}
attributes #0 = { nounwind willreturn memory(none) }

;--- user.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"
declare float @powf(float, float)
declare float @llvm.exp.f32(float)
define void @loop(ptr noalias %a, ptr noalias %b, i64 %n) #0 {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %pa = getelementptr inbounds float, ptr %a, i64 %i
  %pb = getelementptr inbounds float, ptr %b, i64 %i
  %x = load float, ptr %pa
  %y = call float @llvm.exp.f32(float %x)
  store float %y, ptr %pb
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %exit, label %body
exit:
  ret void
}
define void @slp(ptr noalias %a, ptr noalias %b) #0 {
  %x0 = load float, ptr %a
  %a1 = getelementptr float, ptr %a, i64 1
  %x1 = load float, ptr %a1
  %a2 = getelementptr float, ptr %a, i64 2
  %x2 = load float, ptr %a2
  %a3 = getelementptr float, ptr %a, i64 3
  %x3 = load float, ptr %a3
  %a4 = getelementptr float, ptr %a, i64 4
  %x4 = load float, ptr %a4
  %a5 = getelementptr float, ptr %a, i64 5
  %x5 = load float, ptr %a5
  %a6 = getelementptr float, ptr %a, i64 6
  %x6 = load float, ptr %a6
  %a7 = getelementptr float, ptr %a, i64 7
  %x7 = load float, ptr %a7
  %y0 = call float @llvm.exp.f32(float %x0)
  %y1 = call float @llvm.exp.f32(float %x1)
  %y2 = call float @llvm.exp.f32(float %x2)
  %y3 = call float @llvm.exp.f32(float %x3)
  %y4 = call float @llvm.exp.f32(float %x4)
  %y5 = call float @llvm.exp.f32(float %x5)
  %y6 = call float @llvm.exp.f32(float %x6)
  %y7 = call float @llvm.exp.f32(float %x7)
  store float %y0, ptr %b
  %b1 = getelementptr float, ptr %b, i64 1
  store float %y1, ptr %b1
  %b2 = getelementptr float, ptr %b, i64 2
  store float %y2, ptr %b2
  %b3 = getelementptr float, ptr %b, i64 3
  store float %y3, ptr %b3
  %b4 = getelementptr float, ptr %b, i64 4
  store float %y4, ptr %b4
  %b5 = getelementptr float, ptr %b, i64 5
  store float %y5, ptr %b5
  %b6 = getelementptr float, ptr %b, i64 6
  store float %y6, ptr %b6
  %b7 = getelementptr float, ptr %b, i64 7
  store float %y7, ptr %b7
  ret void
}
define float @becomes_exp2(float %x) #0 {
  %y = call float @powf(float 2.0, float %x) #1
  ret float %y
}
attributes #0 = { nounwind "target-cpu"="x86-64-v3" }
attributes #1 = { memory(none) }
