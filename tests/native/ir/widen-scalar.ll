; SPDX-License-Identifier: Apache-2.0
; A UDF that is one scalar function: the forms loop over it, nothing is hard.
; Two arguments, doubles, and the CPU of the most modest level.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-widen,verify' -udf-widen-manifest=%t/manifest.json -S %t/udf.ll \
; RUN:   | %FileCheck %s --implicit-check-not=fixup --implicit-check-not=alwaysinline

; CHECK-LABEL: define void @__udf_g_array(i64 %0, ptr %1, ptr %2, ptr %3, i64 %4)
; CHECK: %full = and i64 %0, -4
; CHECK: load <4 x double>, ptr %{{.*}}, align 8
; CHECK: load <4 x double>, ptr %{{.*}}, align 8
; CHECK: call <4 x double> @llvm.masked.load.v4f64.p0
; CHECK: call <4 x double> @llvm.masked.load.v4f64.p0
; CHECK: call double @g(double %{{.*}}, double %{{.*}})
; CHECK: store <4 x double> %{{.*}}, ptr %{{.*}}, align 8
; CHECK: call void @llvm.masked.store.v4f64.p0

; CHECK-LABEL: define double @__udf_g(double %0, double %1)
; CHECK: call double @g(double %0, double %1)
; CHECK: ret double

; CHECK-LABEL: define <2 x double> @__udf_g_v2(<2 x double> %0, <2 x double> %1)
; CHECK: call double @g(double %{{.*}}, double %{{.*}})
; CHECK: !llvm.loop
; CHECK: ret <2 x double>

; A scalar function may hold what no vectoriser takes: no warning is asked for.
; CHECK-NOT: !"llvm.loop.vectorize.enable", i1 true

;--- manifest.json
{"functions": [{"name": "g", "type": "double", "arity": 2, "scalar": "g",
                "forms": {"array": "__udf_g_array", "v2": "__udf_g_v2", "scalar": "__udf_g"}}]}

;--- udf.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

define double @g(double %x, double %y) nounwind {
  %c = fcmp olt double %x, %y
  br i1 %c, label %less, label %more
less:
  ret double %x
more:
  ret double %y
}
