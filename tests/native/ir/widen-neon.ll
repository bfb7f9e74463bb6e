; SPDX-License-Identifier: Apache-2.0
; AArch64: forms of one AdvSIMD register, and blocks of two.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-widen,verify' -udf-widen-manifest=%t/manifest.json -S %t/udf.ll \
; RUN:   | %FileCheck %s
; The vectoriser takes a vector form whole: no loop, no lane by itself.
; RUN: %opt -passes='udf-widen,default<O3>' -udf-widen-manifest=%t/manifest.json -S %t/udf.ll \
; RUN:   | %FileCheck %s --check-prefix=WIDE

; CHECK-LABEL: define void @__udf_f_array(i64 %0, ptr %1, ptr %2, i64 %3)
; CHECK: %full = and i64 %0, -8
; CHECK: load <8 x float>, ptr %{{.*}}, align 4
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %{{.*}}, !llvm.loop ![[BLOCK:[0-9]+]]
; CHECK: call void @__udf_f_array.fixup(ptr %{{.*}}, ptr %{{.*}}, i64 8)
; CHECK: call void @llvm.masked.store.v8f32.p0

; CHECK: define <4 x float> @__udf_f_v4(<4 x float> %0) #[[FORM:[0-9]+]]
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %{{.*}}, !llvm.loop ![[LANES:[0-9]+]]
; CHECK: tail call <4 x float> @__udf_f_v4.fixup(<4 x float> %0)
; CHECK: define <2 x double> @__udf_g_v2(<2 x double> %0)

; The base procedure call standard, as SLEEF's AdvSIMD functions have.
; CHECK-NOT: aarch64_vector_pcs
; CHECK-DAG: attributes #[[FORM]] = {{{.*}}"target-cpu"="generic" "target-features"="+neon" "udf-widen"="f:v4" }
; CHECK-DAG: ![[BLOCK]] = distinct !{![[BLOCK]], ![[PROGRESS:[0-9]+]], ![[UNROLL:[0-9]+]], ![[WIDTH:[0-9]+]], ![[TWO:[0-9]+]], ![[ON:[0-9]+]]}
; CHECK-DAG: ![[LANES]] = distinct !{![[LANES]], ![[PROGRESS]], ![[UNROLL]], ![[WIDTH]], ![[ONE:[0-9]+]], ![[ON]]}
; CHECK-DAG: ![[WIDTH]] = !{!"llvm.loop.vectorize.width", i32 4}
; CHECK-DAG: ![[ONE]] = !{!"llvm.loop.interleave.count", i32 1}
; CHECK-DAG: ![[TWO]] = !{!"llvm.loop.interleave.count", i32 2}

; WIDE-LABEL: define {{.*}}<4 x float> @__udf_f_v4(
; WIDE-NOT: br label
; WIDE: fmul <4 x float>
; WIDE-NOT: fmul float
; WIDE: fcmp olt <4 x float>
; WIDE: ret <4 x float>

;--- manifest.json
{"functions": [{"name": "f", "type": "float", "arity": 1, "scalar": null,
                "fast": "fast", "accurate": "accurate",
                "forms": {"array": "__udf_f_array", "v4": "__udf_f_v4"}},
               {"name": "g", "type": "double", "arity": 1, "scalar": "whole",
                "fast": null, "accurate": null, "forms": {"v2": "__udf_g_v2"}}]}

;--- udf.ll
target datalayout = "e-m:e-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128-Fn32"
target triple = "aarch64-unknown-linux-gnu"

define internal float @fast(float %x, ptr %hard) #0 {
  %y = fmul float %x, %x
  %c = fcmp olt float %y, 1.0
  %h = zext i1 %c to i32
  store i32 %h, ptr %hard
  ret float %y
}

define internal float @accurate(float %x) #0 {
  ret float %x
}

define internal double @whole(double %x) #0 {
  %y = fmul double %x, %x
  ret double %y
}

attributes #0 = { nounwind "target-cpu"="generic" "target-features"="+neon" }
