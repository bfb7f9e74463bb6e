; SPDX-License-Identifier: Apache-2.0
; Each form watches itself: two tests and cold branches around an inlined body, of which one
; with an ordinary range needs no look at the result; an array form hands itself over; a second
; run, and a module that calls the form, see no difference.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-instrument,verify,udf-instrument,verify' \
; RUN:   -udf-instrument-manifest=%t/manifest.json -S %t/forms.ll | %FileCheck %s

; CHECK: @udfprof_row = external thread_local(initialexec) global ptr

; CHECK-LABEL: define float @f(float %0)
; CHECK: %row = load ptr, ptr %{{.*}}, align 8
; CHECK: getelementptr inbounds i8, ptr %row, i64 2560
; CHECK: store i64 %{{.*}}, ptr %{{.*}}, align 8
; CHECK: br i1 %{{.*}}, label %turn, label %known, !prof
; CHECK-COUNT-2: fcmp o{{[lg]}}t float
; CHECK: br i1 %{{.*}}, label %old, label %look, !prof
; CHECK: tail call float @f.body(float %0) #[[INLINE:[0-9]+]]
; CHECK-COUNT-2: fcmp o{{[lg]}}t float
; CHECK: br i1 %{{.*}}, label %done, label %result, !prof
; CHECK: call ptr @llvm.returnaddress(i32 0)
; CHECK: tail call float @f.turn(ptr %{{.*}}, float %0)
; CHECK: tail call float @f.look(float %0)
; CHECK: tail call float @__udf_result_f1(ptr %cell, float %{{.*}})

; CHECK-LABEL: define <8 x float> @f_v8(<8 x float> %0, <8 x float> %1)
; CHECK-COUNT-6: fcmp o{{[lg]}}t <8 x float>
; CHECK: icmp eq i8 %{{.*}}, -1
; CHECK: tail call <8 x float> @__udf_result_f8(

; CHECK-LABEL: define <8 x float> @e_v8(<8 x float> %0)
; CHECK-COUNT-2: fcmp o{{[lg]}}t <8 x float>
; CHECK: %[[NONE:.*]] = icmp eq i64 %{{.*}}, 0
; CHECK-NEXT: br i1 %[[NONE]], label %plain, label %maybe
; CHECK: %[[Y:.*]] = tail call <8 x float> @e_v8.body(<8 x float> %0)
; CHECK-NEXT: ret <8 x float> %[[Y]]
; CHECK: br i1 %{{.*}}, label %old, label %maybe, !prof
; CHECK: %zero = icmp eq <8 x i32>
; CHECK: %infinity = icmp eq <8 x i32>
; CHECK: br i1 %{{.*}}, label %passed, label %look, !prof
; CHECK-COUNT-2: call i32 @llvm.ctpop.i32(
; CHECK: br label %old
; CHECK-NOT: __udf_result

; CHECK-LABEL: define void @f_array(
; CHECK: call void @__udf_watch_array_d(i32 44, ptr %{{.*}}, i64 1024, ptr @f_array.body, i64 %0, ptr %1, ptr null, ptr %2, i64 %3)
; CHECK-NEXT: ret void

; CHECK-LABEL: define void @both(
; CHECK: call void @both.body(double %0, ptr %1, ptr %2)
; CHECK: call void @__udf_joint_d1(i32 255, ptr %{{.*}}, double %0, double %{{.*}}, double %{{.*}})

; CHECK-LABEL: define float @caller(float %x)
; CHECK-NEXT: call float @f(float %x)

; CHECK-LABEL: define internal float @f.body(float %x)
; CHECK-NEXT: fmul float %x, 2.0
; CHECK-LABEL: define internal float @f.turn(ptr %0, float %1)
; CHECK: call ptr @udfprof_turn(i32 40, ptr %0, i64 0, i64 0)
; CHECK: call float @f.body(float %1) #[[OUTLINE:[0-9]+]]
; CHECK: call float @__udf_sample1_f1(
; CHECK: call float @__udf_observe1_f1(
; CHECK-LABEL: define internal float @f.look(float %0)
; CHECK: call float @__udf_observe1_f1(
; CHECK-LABEL: define internal <8 x float> @e_v8.turn(
; CHECK: call ptr @udfprof_turn(i32 12, ptr %0, i64 3266183168, i64 1118830592)
; CHECK-NOT: define internal float @f.body.body

; CHECK-DAG: attributes #[[INLINE]] = { alwaysinline }
; CHECK-DAG: attributes #[[OUTLINE]] = { noinline }

;--- manifest.json
{"watch": [
  {"symbol": "f", "form": "scalar", "type": "float", "arity": 1, "slot": 40},
  {"symbol": "f_v8", "form": "v8", "type": "float", "arity": 2, "slot": 42},
  {"symbol": "f_array", "form": "array", "type": "double", "arity": 1, "slot": 44, "chunk": 1024},
  {"symbol": "both", "form": "sincos", "type": "double", "arity": 1, "slot": 255},
  {"symbol": "e_v8", "form": "v8", "type": "float", "arity": 1, "slot": 12,
   "ordinary": [-87, 88], "exponential": true}
]}

;--- forms.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

define float @f(float %x) alwaysinline memory(none) {
  %y = fmul float %x, 2.0
  ret float %y
}

define <8 x float> @f_v8(<8 x float> %x, <8 x float> %y) {
  %z = fadd <8 x float> %x, %y
  ret <8 x float> %z
}

define <8 x float> @e_v8(<8 x float> %x) {
  %y = fadd <8 x float> %x, %x
  ret <8 x float> %y
}

define void @f_array(i64 %n, ptr %a, ptr %out, i64 %mode) {
  ret void
}

define void @both(double %x, ptr %s, ptr %c) {
  store double %x, ptr %s
  store double %x, ptr %c
  ret void
}

define float @caller(float %x) {
  %y = call float @f(float %x)
  ret float %y
}
