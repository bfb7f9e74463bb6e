; SPDX-License-Identifier: Apache-2.0
; Calls of the functions that stand for an instruction get vector variants, and in the
; end are the instruction, or the body that the function has.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-lanes,verify' -S %t/wide.ll | %FileCheck %s --check-prefix=CALL
; RUN: %opt -passes='udf-lanes,udf-tables<late>,verify' -S %t/wide.ll | %FileCheck %s --check-prefix=BACK
; RUN: %opt -passes='udf-lanes,loop-vectorize,udf-tables<late>,verify' -S %t/loop.ll | %FileCheck %s --check-prefix=VECTOR
; RUN: %opt -passes='udf-lanes,udf-tables<late>,verify' -S %t/narrow.ll | %FileCheck %s --check-prefix=BACK
; RUN: %opt -passes='udf-lanes,verify' -S %t/double.ll | %FileCheck %s --check-prefix=DOUBLE
; RUN: %opt -passes='udf-lanes,verify' -S %t/foreign.ll | %FileCheck %s --check-prefix=FOREIGN
; RUN: %opt -passes='udf-lanes,verify' -S %t/arity.ll | %FileCheck %s --check-prefix=FOREIGN

; CALL: define internal float @udf_lane_scale(float %y, float %n) #[[BODY:[0-9]+]]
; CALL-LABEL: define float @form(
; CALL: call float @udf_lane_scale(float %y, float %n) #[[SCALE:[0-9]+]]
; CALL-LABEL: define float @exponent_form(
; CALL: call float @udf_lane_exponent(float %x) #[[EXPONENT:[0-9]+]]
; CALL-LABEL: define float @mantissa_form(
; CALL: call float @udf_lane_mantissa(float %x) #[[MANTISSA:[0-9]+]]
; CALL-LABEL: define internal <8 x float> @udf_lane_scale.v8(<8 x float> %0, <8 x float> %1)
; CALL: call <8 x float> @llvm.x86.avx512.mask.scalef.ps.256(<8 x float> %0, <8 x float> %1, <8 x float> zeroinitializer, i8 -1)
; CALL-LABEL: define internal <16 x float> @udf_lane_scale.v16(<16 x float> %0, <16 x float> %1)
; CALL: call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %0, <16 x float> %1, <16 x float> zeroinitializer, i16 -1, i32 4)
; CALL-LABEL: define internal <8 x float> @udf_lane_exponent.v8(<8 x float> %0)
; CALL: call <8 x float> @llvm.x86.avx512.mask.getexp.ps.256(<8 x float> %0, <8 x float> zeroinitializer, i8 -1)
; CALL-LABEL: define internal <16 x float> @udf_lane_exponent.v16(<16 x float> %0)
; CALL: call <16 x float> @llvm.x86.avx512.mask.getexp.ps.512(<16 x float> %0, <16 x float> zeroinitializer, i16 -1, i32 4)
; The immediate 8: in [1, 2), and NaN for a negative argument.
; CALL-LABEL: define internal <8 x float> @udf_lane_mantissa.v8(<8 x float> %0)
; CALL: call <8 x float> @llvm.x86.avx512.mask.getmant.ps.256(<8 x float> %0, i32 8, <8 x float> zeroinitializer, i8 -1)
; CALL-LABEL: define internal <16 x float> @udf_lane_mantissa.v16(<16 x float> %0)
; CALL: call <16 x float> @llvm.x86.avx512.mask.getmant.ps.512(<16 x float> %0, i32 8, <16 x float> zeroinitializer, i16 -1, i32 4)
; CALL-DAG: attributes #[[BODY]] = { {{.*}}"udf-late-inline"
; CALL-DAG: attributes #[[SCALE]] = { "vector-function-abi-variant"="_ZGV_LLVM_N8vv_udf_lane_scale(udf_lane_scale.v8),_ZGV_LLVM_N16vv_udf_lane_scale(udf_lane_scale.v16)"
; CALL-DAG: attributes #[[EXPONENT]] = { "vector-function-abi-variant"="_ZGV_LLVM_N8v_udf_lane_exponent(udf_lane_exponent.v8),_ZGV_LLVM_N16v_udf_lane_exponent(udf_lane_exponent.v16)"
; CALL-DAG: attributes #[[MANTISSA]] = { "vector-function-abi-variant"="_ZGV_LLVM_N8v_udf_lane_mantissa(udf_lane_mantissa.v8),_ZGV_LLVM_N16v_udf_lane_mantissa(udf_lane_mantissa.v16)"

; BACK-LABEL: define float @form(
; BACK: call float @llvm.ldexp.f32.i32(
; BACK-LABEL: define float @exponent_form(
; BACK: call float @logbf(
; BACK-LABEL: define float @mantissa_form(
; BACK: call float @llvm.ldexp.f32.i32(
; BACK-NOT: udf_lane

; VECTOR-LABEL: define void @form_array(
; VECTOR: call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(
; VECTOR-NOT: udf_lane
; VECTOR-LABEL: define void @split_array(
; VECTOR-DAG: call <16 x float> @llvm.x86.avx512.mask.getexp.ps.512(
; VECTOR-DAG: call <16 x float> @llvm.x86.avx512.mask.getmant.ps.512(<16 x float> %{{.*}}, i32 8,
; VECTOR-NOT: udf_lane

; DOUBLE-LABEL: define internal <4 x double> @udf_lane_scale_double.v4(<4 x double> %0, <4 x double> %1)
; DOUBLE: call <4 x double> @llvm.x86.avx512.mask.scalef.pd.256(<4 x double> %0, <4 x double> %1, <4 x double> zeroinitializer, i8 -1)
; DOUBLE-LABEL: define internal <8 x double> @udf_lane_scale_double.v8(<8 x double> %0, <8 x double> %1)
; DOUBLE: call <8 x double> @llvm.x86.avx512.mask.scalef.pd.512(<8 x double> %0, <8 x double> %1, <8 x double> zeroinitializer, i8 -1, i32 4)
; DOUBLE: "vector-function-abi-variant"="_ZGV_LLVM_N4vv_udf_lane_scale_double(udf_lane_scale_double.v4),_ZGV_LLVM_N8vv_udf_lane_scale_double(udf_lane_scale_double.v8)"

; A function of that name from elsewhere, or with another number of arguments, is not ours.
; FOREIGN-NOT: vector-function-abi-variant
; FOREIGN-NOT: udf-late-inline

;--- wide.ll
target triple = "x86_64-unknown-linux-gnu"

define internal float @udf_lane_scale(float %y, float %n) #1 {
  %f = call float @llvm.floor.f32(float %n)
  %i = fptosi float %f to i32
  %z = call float @llvm.ldexp.f32.i32(float %y, i32 %i)
  ret float %z
}

define float @form(float %y, float %n) #0 {
  %z = call float @udf_lane_scale(float %y, float %n)
  ret float %z
}

define internal float @udf_lane_exponent(float %x) #1 {
  %e = call float @logbf(float %x)
  ret float %e
}

define internal float @udf_lane_mantissa(float %x) #1 {
  %e = call float @logbf(float %x)
  %i = fptosi float %e to i32
  %n = sub i32 0, %i
  %m = call float @llvm.ldexp.f32.i32(float %x, i32 %n)
  ret float %m
}

define float @exponent_form(float %x) #0 {
  %e = call float @udf_lane_exponent(float %x)
  ret float %e
}

define float @mantissa_form(float %x) #0 {
  %m = call float @udf_lane_mantissa(float %x)
  ret float %m
}

declare float @llvm.floor.f32(float)
declare float @llvm.ldexp.f32.i32(float, i32)
declare float @logbf(float)

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v16" }
attributes #1 = { noinline nounwind "target-cpu"="x86-64-v4" }

;--- double.ll
target triple = "x86_64-unknown-linux-gnu"

define internal double @udf_lane_scale_double(double %y, double %n) #1 {
  %f = call double @llvm.floor.f64(double %n)
  %i = fptosi double %f to i32
  %z = call double @llvm.ldexp.f64.i32(double %y, i32 %i)
  ret double %z
}

define double @form(double %y, double %n) #0 {
  %z = call double @udf_lane_scale_double(double %y, double %n)
  ret double %z
}

declare double @llvm.floor.f64(double)
declare double @llvm.ldexp.f64.i32(double, i32)

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v8" }
attributes #1 = { noinline nounwind "target-cpu"="x86-64-v4" }

;--- narrow.ll
target triple = "x86_64-unknown-linux-gnu"

define internal float @udf_lane_scale(float %y, float %n) #1 {
  %f = call float @llvm.floor.f32(float %n)
  %i = fptosi float %f to i32
  %z = call float @llvm.ldexp.f32.i32(float %y, i32 %i)
  ret float %z
}

define float @form(float %y, float %n) #0 {
  %z = call float @udf_lane_scale(float %y, float %n)
  ret float %z
}

define internal float @udf_lane_exponent(float %x) #1 {
  %e = call float @logbf(float %x)
  ret float %e
}

define internal float @udf_lane_mantissa(float %x) #1 {
  %e = call float @logbf(float %x)
  %i = fptosi float %e to i32
  %n = sub i32 0, %i
  %m = call float @llvm.ldexp.f32.i32(float %x, i32 %n)
  ret float %m
}

define float @exponent_form(float %x) #0 {
  %e = call float @udf_lane_exponent(float %x)
  ret float %e
}

define float @mantissa_form(float %x) #0 {
  %m = call float @udf_lane_mantissa(float %x)
  ret float %m
}

declare float @llvm.floor.f32(float)
declare float @llvm.ldexp.f32.i32(float, i32)
declare float @logbf(float)

attributes #0 = { nounwind "target-cpu"="x86-64-v3" "udf-widen"="f:v8" }
attributes #1 = { noinline nounwind "target-cpu"="x86-64-v3" }

;--- loop.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

define internal float @udf_lane_scale(float %y, float %n) #1 {
  %f = call float @llvm.floor.f32(float %n)
  %i = fptosi float %f to i32
  %z = call float @llvm.ldexp.f32.i32(float %y, i32 %i)
  ret float %z
}

define void @form_array(ptr noalias %in, ptr noalias %out) #0 {
entry:
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load float, ptr %p, align 4
  %z = call float @udf_lane_scale(float %x, float %x)
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store float %z, ptr %o, align 4
  %next = add nuw nsw i64 %i, 1
  %last = icmp eq i64 %next, 64
  br i1 %last, label %exit, label %loop, !llvm.loop !0

exit:
  ret void
}

define internal float @udf_lane_exponent(float %x) #1 {
  %e = call float @logbf(float %x)
  ret float %e
}

define internal float @udf_lane_mantissa(float %x) #1 {
  %e = call float @logbf(float %x)
  %i = fptosi float %e to i32
  %n = sub i32 0, %i
  %m = call float @llvm.ldexp.f32.i32(float %x, i32 %n)
  ret float %m
}

define void @split_array(ptr noalias %in, ptr noalias %out) #0 {
entry:
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load float, ptr %p, align 4
  %e = call float @udf_lane_exponent(float %x)
  %m = call float @udf_lane_mantissa(float %x)
  %z = fadd float %e, %m
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store float %z, ptr %o, align 4
  %next = add nuw nsw i64 %i, 1
  %last = icmp eq i64 %next, 64
  br i1 %last, label %exit, label %loop, !llvm.loop !0

exit:
  ret void
}

declare float @llvm.floor.f32(float)
declare float @llvm.ldexp.f32.i32(float, i32)
declare float @logbf(float) #2

attributes #0 = { nounwind "prefer-vector-width"="512" "target-cpu"="x86-64-v4" "udf-widen"="f:array" }
attributes #1 = { noinline nounwind "target-cpu"="x86-64-v4" }
attributes #2 = { nounwind willreturn memory(none) }
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.width", i32 16}

;--- foreign.ll
target triple = "x86_64-unknown-linux-gnu"

declare float @udf_lane_scale(float, float)

define float @form(float %y, float %n) #0 {
  %z = call float @udf_lane_scale(float %y, float %n)
  ret float %z
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v16" }

;--- arity.ll
target triple = "x86_64-unknown-linux-gnu"

define internal float @udf_lane_scale(float %y) #1 {
  ret float %y
}

define internal float @udf_lane_exponent(float %x, float %n) #1 {
  ret float %n
}

define internal float @udf_lane_mantissa(float %x, float %n) #1 {
  ret float %n
}

define float @form(float %y, float %n) #0 {
  %z = call float @udf_lane_scale(float %y)
  %e = call float @udf_lane_exponent(float %z, float %n)
  %m = call float @udf_lane_mantissa(float %z, float %e)
  ret float %m
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v16" }
attributes #1 = { noinline nounwind "target-cpu"="x86-64-v4" }
