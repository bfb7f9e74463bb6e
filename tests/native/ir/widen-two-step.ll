; SPDX-License-Identifier: Apache-2.0
; A UDF of two steps gets a scalar, a vector and an array form.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-widen,verify' -udf-widen-manifest=%t/manifest.json -S %t/udf.ll \
; RUN:   | %FileCheck %s
; A pipeline that contains the pass once more makes nothing twice.
; RUN: %opt -passes='udf-widen,default<O3>,udf-widen' -udf-widen-manifest=%t/manifest.json -S %t/udf.ll \
; RUN:   | %FileCheck %s --check-prefix=ONCE
; ONCE-COUNT-1: define {{.*}}@__udf_f_array(
; ONCE-NOT: define {{.*}}@__udf_f_array(

; The author's functions: the fast one into every form, the other out of line.
; CHECK: define internal float @fast(float %x, ptr %hard) #[[FAST:[0-9]+]]
; CHECK: call float @helper(float %x) #[[INLINE:[0-9]+]]
; CHECK: define internal float @accurate(float %x) #[[COLD:[0-9]+]]

; MKL's ABI; blocks of two registers, then a masked tail.
; CHECK-LABEL: define void @__udf_f_array(i64 %0, ptr %1, ptr %2, i64 %3)
; CHECK: %full = and i64 %0, -16
; CHECK: icmp sge i64 %0, 16
; CHECK: load <16 x float>, ptr %{{.*}}, align 4
; CHECK: call <16 x float> @llvm.masked.load.v16f32.p0
; CHECK: call float @fast(float %{{.*}}, ptr %{{.*}})
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %{{.*}}, !llvm.loop ![[LANES16:[0-9]+]]
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %{{.*}}, !prof ![[UNLIKELY:[0-9]+]]
; CHECK: call void @__udf_f_array.fixup(ptr %{{.*}}, ptr %{{.*}}, i64 16)
; CHECK: store <16 x float> %{{.*}}, ptr %{{.*}}, align 4
; CHECK: call void @__udf_f_array.fixup(ptr %{{.*}}, ptr %{{.*}}, i64 %left)
; CHECK: call void @llvm.masked.store.v16f32.p0

; CHECK-LABEL: define float @__udf_f(float %0)
; CHECK: %y = call float @fast(float %0, ptr %flag)
; CHECK: br i1 %hard, label %{{.*}}, label %{{.*}}, !prof ![[UNLIKELY]]
; CHECK: %z = tail call float @accurate(float %0)

; CHECK: define <8 x float> @__udf_f_v8(<8 x float> %0) #[[WIDE:[0-9]+]]
; CHECK: %[[FLAG:.*]] = alloca i32
; CHECK: store i32 0, ptr %[[FLAG]]
; CHECK: call float @fast(float %{{.*}}, ptr %[[FLAG]])
; CHECK: or i1
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %{{.*}}, !llvm.loop ![[LANES8:[0-9]+]]
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %{{.*}}, !prof ![[UNLIKELY]]
; CHECK: tail call <8 x float> @__udf_f_v8.fixup(<8 x float> %0)

; The fix-up: flags of all lanes, then the accurate path on the set ones only.
; CHECK: define internal <8 x float> @__udf_f_v8.fixup(<8 x float> %0) #[[FIXUP:[0-9]+]]
; CHECK: call float @fast
; CHECK: %todo = icmp ne <8 x i8> %{{.*}}, zeroinitializer
; CHECK: bitcast <8 x i1> %todo to i8
; CHECK: call i8 @llvm.cttz.i8
; CHECK: call float @accurate

; The CPU is the author's; the vectors stay whole.
; CHECK-DAG: attributes #[[FAST]] = { alwaysinline
; CHECK-DAG: attributes #[[COLD]] = { cold noinline
; CHECK-DAG: attributes #[[WIDE]] = { nounwind "min-legal-vector-width"="256" "prefer-vector-width"="256" "target-cpu"="x86-64-v3" "udf-widen"="f:v8" }
; CHECK-DAG: attributes #[[FIXUP]] = { cold noinline nounwind "min-legal-vector-width"="256"
; CHECK-DAG: attributes #[[INLINE]] = { alwaysinline }

; The vectoriser takes a block in one go, and nobody unrolls it before.
; CHECK-DAG: ![[UNLIKELY]] = !{!"branch_weights", i32 1, i32 1048575}
; CHECK-DAG: ![[LANES8]] = distinct !{![[LANES8]], ![[PROGRESS:[0-9]+]], ![[UNROLL:[0-9]+]], ![[WIDTH:[0-9]+]], ![[ONE:[0-9]+]], ![[ON:[0-9]+]]}
; CHECK-DAG: ![[LANES16]] = distinct !{![[LANES16]], ![[PROGRESS]], ![[UNROLL]], ![[WIDTH]], ![[TWO:[0-9]+]], ![[ON]]}
; CHECK-DAG: ![[PROGRESS]] = !{!"llvm.loop.mustprogress"}
; CHECK-DAG: ![[UNROLL]] = !{!"llvm.loop.unroll.disable"}
; CHECK-DAG: ![[WIDTH]] = !{!"llvm.loop.vectorize.width", i32 8}
; CHECK-DAG: ![[ONE]] = !{!"llvm.loop.interleave.count", i32 1}
; CHECK-DAG: ![[ON]] = !{!"llvm.loop.vectorize.enable", i1 true}
; CHECK-DAG: ![[TWO]] = !{!"llvm.loop.interleave.count", i32 2}

;--- manifest.json
{"functions": [{"name": "f", "type": "float", "arity": 1, "scalar": null,
                "fast": "fast", "accurate": "accurate",
                "forms": {"array": "__udf_f_array", "v8": "__udf_f_v8", "scalar": "__udf_f"}}]}

;--- udf.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

define internal float @helper(float %x) #0 {
  %y = fmul float %x, %x
  ret float %y
}

define internal float @fast(float %x, ptr %hard) #1 {
  %y = call float @helper(float %x)
  %c = fcmp olt float %y, 1.0
  %h = zext i1 %c to i32
  store i32 %h, ptr %hard
  ret float %y
}

define internal float @accurate(float %x) #0 {
  ret float %x
}

attributes #0 = { nounwind "target-cpu"="x86-64-v3" }
attributes #1 = { noinline nounwind optnone "target-cpu"="x86-64-v3" }
