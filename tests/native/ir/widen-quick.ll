; SPDX-License-Identifier: Apache-2.0
; The array form of a UDF with a quick path puts hard lanes aside.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-widen,verify' -udf-widen-manifest=%t/manifest.json -S %t/udf.ll \
; RUN:   | %FileCheck %s
; Without the quick path there is nothing to put aside.
; RUN: %opt -passes='udf-widen,verify' -udf-widen-manifest=%t/plain.json -S %t/udf.ll \
; RUN:   | %FileCheck %s --check-prefix=PLAIN
; PLAIN: define void @__udf_f_array(
; PLAIN-NOT: aside
; PLAIN-NOT: repair

; CHECK-LABEL: define void @__udf_f_array(i64 %0, ptr %1, ptr %2, ptr %3, i64 %4)
; The list has room for four blocks: two arguments, and where the result goes.
; CHECK: %[[USED:.*]] = alloca i64
; CHECK: %[[PLACES:.*]] = alloca [64 x i64]
; CHECK: %aside{{[0-9]*}} = alloca [64 x float], align 4
; CHECK: %aside{{[0-9]*}} = alloca [64 x float], align 4
; CHECK: store i64 0, ptr %[[USED]]
; CHECK: br i1 %{{.*}}, label %[[BLOCKS:.*]], label %[[REST:.*]]

; What is left at the end is repaired before the tail, which puts nothing aside.
; CHECK: {{^}}[[REST]]:
; CHECK: %[[LAST:.*]] = load i64, ptr %[[USED]]
; CHECK: icmp ugt i64 %[[LAST]], 0

; The mask of a block comes register by register.
; CHECK: call float @quick(
; CHECK: %[[LOW:.*]] = bitcast <8 x i1> %{{.*}} to i8
; CHECK: %[[LOW_WIDE:.*]] = zext i8 %[[LOW]] to i16
; CHECK: %[[HIGH:.*]] = bitcast <8 x i1> %{{.*}} to i8
; CHECK: %[[HIGH_WIDE:.*]] = zext i8 %[[HIGH]] to i16
; CHECK: %[[SHIFTED:.*]] = shl i16 %[[HIGH_WIDE]], 8
; CHECK: %[[MASK:.*]] = or i16 %[[LOW_WIDE]], %[[SHIFTED]]
; CHECK: %[[ANY:.*]] = icmp ne i16 %[[MASK]], 0
; CHECK: br i1 %[[ANY]], label %[[HARD:.*]], label %[[EASY:.*]], !prof ![[UNLIKELY:[0-9]+]]

; Up to two lanes go aside, if the list has room for two.
; CHECK: {{^}}[[HARD]]:
; CHECK: %[[COUNT:.*]] = call i16 @llvm.ctpop.i16(i16 %[[MASK]])
; CHECK: %[[FEW:.*]] = icmp ule i16 %[[COUNT]], 2
; CHECK: %[[SO_FAR:.*]] = load i64, ptr %[[USED]]
; CHECK: %[[ROOM:.*]] = icmp ule i64 %[[SO_FAR]], 62
; CHECK: %[[GOES:.*]] = and i1 %[[FEW]], %[[ROOM]]
; CHECK: br i1 %[[GOES]], label %[[ASIDE:.*]], label %[[MANY:.*]]

; Results are stored after the hard lanes' arguments were read.
; CHECK: {{^}}[[EASY]]: {{.*}}preds = %[[EACH_DONE:[^,]*]],
; CHECK: store <16 x float> %{{.*}}, ptr %{{.*}}, align 4
; CHECK: {{^}}[[ASIDE]]:
; CHECK: br i1 %{{.*}}, label %[[EACH:.*]], label %[[EACH_DONE]]

; Otherwise the whole block is repaired at once, and a full list with it.
; CHECK: {{^}}[[MANY]]:
; CHECK: call void @__udf_f_array.fixup(ptr %{{.*}}, ptr %{{.*}}, ptr %{{.*}}, i64 16)
; CHECK: icmp ugt i64 %{{.*}}, 62

; CHECK: {{^}}[[EACH]]:
; CHECK: call i16 @llvm.cttz.i16(
; CHECK: %[[PLACE:.*]] = add nuw i64 %i, %lane
; CHECK: getelementptr inbounds float, ptr %1, i64 %[[PLACE]]
; CHECK: getelementptr inbounds float, ptr %[[A:aside[0-9]*]], i64 %[[SLOT:.*]]
; CHECK: getelementptr inbounds float, ptr %2, i64 %[[PLACE]]
; CHECK: getelementptr inbounds float, ptr %[[B:aside[0-9]*]], i64 %[[SLOT]]
; CHECK: getelementptr inbounds i64, ptr %[[PLACES]], i64 %[[SLOT]]
; CHECK: {{^}}[[EACH_DONE]]:
; CHECK: br label %[[EASY]]
; CHECK: call void @__udf_f_array.repair(ptr %[[A]], ptr %[[B]], ptr %[[PLACES]], ptr %3, i64 %{{.*}})
; CHECK: call void @__udf_f_array.repair(ptr %[[A]], ptr %[[B]], ptr %[[PLACES]], ptr %3, i64 %[[LAST]])

; The repair is the fix-up on the list, block by block, then the results go to their places.
; CHECK-LABEL: define internal void @__udf_f_array.repair(ptr %0, ptr %1, ptr %2, ptr %3, i64 %4)
; CHECK: %[[X:.*]] = getelementptr inbounds float, ptr %0, i64 %i
; CHECK: %[[Y:.*]] = getelementptr inbounds float, ptr %1, i64 %i
; CHECK: %[[N:.*]] = call i64 @llvm.umin.i64(i64 %{{.*}}, i64 16)
; CHECK: call void @__udf_f_array.fixup(ptr %[[X]], ptr %[[Y]], ptr %[[X]], i64 %[[N]])
; CHECK: %[[TO:.*]] = load i64, ptr
; CHECK: %[[OUT:.*]] = getelementptr inbounds float, ptr %3, i64 %[[TO]]
; CHECK: store float %{{.*}}, ptr %[[OUT]]

; A vector form is one block in registers: the fix-up at once.
; CHECK-LABEL: define <8 x float> @__udf_f_v8(
; CHECK: call float @quick(
; CHECK: tail call <8 x float> @__udf_f_v8.fixup(
; CHECK-NOT: aside

; CHECK: ![[UNLIKELY]] = !{!"branch_weights", i32 1, i32 1048575}

;--- manifest.json
{"functions": [{"name": "f", "type": "float", "arity": 2, "scalar": null,
                "quick": "quick", "fast": "fast", "accurate": "accurate",
                "forms": {"array": "__udf_f_array", "v8": "__udf_f_v8"}}]}

;--- plain.json
{"functions": [{"name": "f", "type": "float", "arity": 2, "scalar": null,
                "fast": "fast", "accurate": "accurate",
                "forms": {"array": "__udf_f_array", "v8": "__udf_f_v8"}}]}

;--- udf.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

define internal float @quick(float %x, float %y, ptr %hard) #0 {
  %z = fadd float %x, %y
  %c = fcmp olt float %z, 2.0
  %h = zext i1 %c to i32
  store i32 %h, ptr %hard
  ret float %z
}

define internal float @fast(float %x, float %y, ptr %hard) #0 {
  %z = fadd float %x, %y
  %c = fcmp olt float %z, 1.0
  %h = zext i1 %c to i32
  store i32 %h, ptr %hard
  ret float %z
}

define internal float @accurate(float %x, float %y) #0 {
  ret float %x
}

attributes #0 = { nounwind "target-cpu"="x86-64-v3" }
