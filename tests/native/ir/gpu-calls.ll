; SPDX-License-Identifier: Apache-2.0
; What a GPU does not have is refused by name: functions and data that nobody defines, and
; intrinsics of functions of math. What is declared and not used, and what a GPU has, is not.
; RUN: rm -rf %t && %split %s %t
; RUN: not %opt -passes=udf-gpu-calls -udf-report=%t/report.json -disable-output %t/bad.ll 2>&1 \
; RUN:   | %FileCheck %s
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t/report.json
; RUN: %opt -passes='udf-gpu-calls,verify' -udf-report=%t/none.json -S %t/good.ll \
; RUN:   | %FileCheck %s --check-prefix=GOOD
; RUN: not ls %t/none.json

; CHECK: error: udf-gpu-calls: module '{{.*}}bad.ll' calls cbrt, exp, pow, table, which a GPU does not have
; REPORT: {"missing":["cbrt","exp","pow","table"],"module":"{{.*}}","pass":"udf-gpu-calls"}
; GOOD: call double @llvm.fma.f64

;--- bad.ll
@table = external constant [4 x float]
declare double @cbrt(double)
declare double @unused(double)
declare <2 x float> @llvm.exp.v2f32(<2 x float>)
declare double @llvm.pow.f64(double, double)
declare float @llvm.fabs.f32(float)
define float @a(float %x, ptr %out) {
  %d = fpext float %x to double
  %c = call double @cbrt(double %d)
  %p = tail call fast double @llvm.pow.f64(double %c, double %d)
  %v = call <2 x float> @llvm.exp.v2f32(<2 x float> zeroinitializer)
  store <2 x float> %v, ptr %out
  %t = load float, ptr @table
  %f = call float @llvm.fabs.f32(float %t)
  ret float %f
}

;--- good.ll
declare double @unused(double)
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.nvvm.rcp.approx.ftz.d(double)
@table = internal constant [2 x double] [double 1.0, double 2.0]
define internal double @helper(double %x) {
  %r = call double @llvm.nvvm.rcp.approx.ftz.d(double %x)
  %y = call double @llvm.fma.f64(double %r, double %x, double %x)
  ret double %y
}
define double @udf(double %x) {
  %y = call double @helper(double %x)
  %t = load double, ptr @table
  %z = fdiv double %y, %t
  ret double %z
}
