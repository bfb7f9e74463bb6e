; SPDX-License-Identifier: Apache-2.0
; The loop of an array form begins the next block before this one is done.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-pipeline,verify' -S %t/wide.ll | %FileCheck %s --check-prefix=CUT
; RUN: %opt -passes='udf-pipeline,verify' -S %t/bits.ll | %FileCheck %s --check-prefix=BITS
; RUN: %opt -passes='udf-pipeline,verify' -S %t/divided.ll | %FileCheck %s --check-prefix=DIVIDED
; RUN: %opt -passes='udf-pipeline,verify' -S %t/narrow.ll | %FileCheck %s --check-prefix=LEFT
; RUN: %opt -passes='udf-pipeline,verify' -S %t/doubles.ll | %FileCheck %s --check-prefix=LEFT
; RUN: %opt -passes='udf-pipeline,verify' -S %t/uneven.ll | %FileCheck %s --check-prefix=LEFT

; The first block is begun in front of the loop: its load and its division.
; CUT-LABEL: define void @form(
; CUT: blocks.preheader:
; CUT: %[[END:.*]] = and i64 %n, -16
; CUT: getelementptr inbounds float, ptr %in, i64 0
; CUT: load <16 x float>
; CUT: %[[FIRST:.*]] = fdiv <16 x float>
; What was begun waits in a register. The block after the last is the last one again.
; CUT: blocks:
; CUT: %[[BEGUN:.*]] = phi <16 x float> [ %[[FIRST]], %{{.*}} ], [ %[[NEXT:.*]], %{{.*}} ]
; CUT: %i = phi i64
; The argument itself is read again.
; CUT: %[[HERE:.*]] = getelementptr inbounds float, ptr %in, i64 %i
; CUT: %[[X:.*]] = load <16 x float>, ptr %[[HERE]]
; CUT: %[[OUT:.*]] = getelementptr inbounds float, ptr %out, i64 %i
; CUT: %[[SUM:.*]] = add nsw i64 %i, 16
; CUT: %[[INSIDE:.*]] = icmp slt i64 %[[SUM]], %[[END]]
; CUT: %ahead = select i1 %[[INSIDE]], i64 %[[SUM]], i64 %i
; CUT: getelementptr inbounds float, ptr %in, i64 %ahead
; CUT: %[[NEXT]] = fdiv <16 x float>
; CUT: fadd <16 x float> %[[BEGUN]], %[[X]]
; The mask is not carried over the cut.
; CUT: fcmp olt <16 x float> %[[X]],
; CUT: store <16 x float> %y, ptr %[[OUT]]

; A sign that is used only behind the cut is taken there, from the argument that is read again.
; BITS-LABEL: define void @form(
; BITS: blocks.preheader:
; BITS: fadd <16 x float>
; BITS-NOT: and <16 x i32>
; BITS: {{^}}blocks:
; BITS: phi <16 x float>
; BITS-NOT: phi <16 x i32>
; BITS: %[[X:.*]] = load <16 x float>, ptr %{{.*}}
; BITS: %[[XI:.*]] = bitcast <16 x float> %[[X]] to <16 x i32>
; BITS: %ahead = select
; BITS: %[[SIGN:.*]] = and <16 x i32> %[[XI]], {{.*}}i32 -2147483648
; BITS: or <16 x i32> %{{.*}}, %[[SIGN]]

; Beside a division it is carried over the cut.
; DIVIDED-LABEL: define void @form(
; DIVIDED: blocks.preheader:
; DIVIDED: %[[FIRST:.*]] = and <16 x i32>
; DIVIDED: {{^}}blocks:
; DIVIDED: %[[BEGUN:.*]] = phi <16 x i32> [ %[[FIRST]], %{{.*}} ], [ %[[NEXT:.*]], %{{.*}} ]
; DIVIDED: %ahead = select
; DIVIDED: %[[NEXT]] = and <16 x i32>
; DIVIDED: or <16 x i32> %{{.*}}, %[[BEGUN]]

; Left as they are: registers that are too few or too short, and a loop with another step.
; LEFT-NOT: begun
; LEFT-NOT: ahead

;--- wide.ll
target triple = "x86_64-unknown-linux-gnu"

define void @form(i64 %n, ptr %in, ptr %out, i64 %mode) #0 {
entry:
  %full = and i64 %n, -16
  %some = icmp sgt i64 %n, 15
  br i1 %some, label %blocks, label %exit

blocks:
  %i = phi i64 [ %next, %blocks ], [ 0, %entry ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load <16 x float>, ptr %p, align 4
  %q = fdiv <16 x float> splat (float 1.0), %x
  %a = fadd <16 x float> %q, %x
  %b = fadd <16 x float> %a, %q
  %c = fadd <16 x float> %b, %q
  %d = fadd <16 x float> %c, %q
  %e = fadd <16 x float> %d, %q
  %negative = fcmp olt <16 x float> %x, zeroinitializer
  %y = select <16 x i1> %negative, <16 x float> %x, <16 x float> %e
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store <16 x float> %y, ptr %o, align 4
  %next = add nuw nsw i64 %i, 16
  %more = icmp slt i64 %next, %full
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:array" }

;--- bits.ll
target triple = "x86_64-unknown-linux-gnu"

define void @form(i64 %n, ptr %in, ptr %out, i64 %mode) #0 {
entry:
  %full = and i64 %n, -16
  %some = icmp sgt i64 %n, 15
  br i1 %some, label %blocks, label %exit

blocks:
  %i = phi i64 [ %next, %blocks ], [ 0, %entry ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load <16 x float>, ptr %p, align 4
  %xi = bitcast <16 x float> %x to <16 x i32>
  %sign = and <16 x i32> %xi, splat (i32 -2147483648)
  %q = fadd <16 x float> %x, splat (float 1.0)
  %a = fadd <16 x float> %q, %q
  %b = fadd <16 x float> %a, %a
  %c = fadd <16 x float> %b, %b
  %d = fadd <16 x float> %c, %c
  %e = fadd <16 x float> %d, %d
  %ei = bitcast <16 x float> %e to <16 x i32>
  %yi = or <16 x i32> %ei, %sign
  %y = bitcast <16 x i32> %yi to <16 x float>
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store <16 x float> %y, ptr %o, align 4
  %next = add nuw nsw i64 %i, 16
  %more = icmp slt i64 %next, %full
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:array" }

;--- divided.ll
target triple = "x86_64-unknown-linux-gnu"

define void @form(i64 %n, ptr %in, ptr %out, i64 %mode) #0 {
entry:
  %full = and i64 %n, -16
  %some = icmp sgt i64 %n, 15
  br i1 %some, label %blocks, label %exit

blocks:
  %i = phi i64 [ %next, %blocks ], [ 0, %entry ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load <16 x float>, ptr %p, align 4
  %xi = bitcast <16 x float> %x to <16 x i32>
  %sign = and <16 x i32> %xi, splat (i32 -2147483648)
  %q = fdiv <16 x float> splat (float 1.0), %x
  %a = fadd <16 x float> %q, %q
  %b = fadd <16 x float> %a, %a
  %c = fadd <16 x float> %b, %b
  %d = fadd <16 x float> %c, %c
  %e = fadd <16 x float> %d, %d
  %ei = bitcast <16 x float> %e to <16 x i32>
  %yi = or <16 x i32> %ei, %sign
  %y = bitcast <16 x i32> %yi to <16 x float>
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store <16 x float> %y, ptr %o, align 4
  %next = add nuw nsw i64 %i, 16
  %more = icmp slt i64 %next, %full
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:array" }

;--- narrow.ll
target triple = "x86_64-unknown-linux-gnu"

define void @form(i64 %n, ptr %in, ptr %out, i64 %mode) #0 {
entry:
  %full = and i64 %n, -16
  %some = icmp sgt i64 %n, 15
  br i1 %some, label %blocks, label %exit

blocks:
  %i = phi i64 [ %next, %blocks ], [ 0, %entry ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load <16 x float>, ptr %p, align 4
  %q = fdiv <16 x float> splat (float 1.0), %x
  %y = fadd <16 x float> %q, %x
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store <16 x float> %y, ptr %o, align 4
  %next = add nuw nsw i64 %i, 16
  %more = icmp slt i64 %next, %full
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v3" "udf-widen"="f:array" }

;--- doubles.ll
target triple = "x86_64-unknown-linux-gnu"

define void @form(i64 %n, ptr %in, ptr %out, i64 %mode) #0 {
entry:
  %full = and i64 %n, -16
  %some = icmp sgt i64 %n, 15
  br i1 %some, label %blocks, label %exit

blocks:
  %i = phi i64 [ %next, %blocks ], [ 0, %entry ]
  %p = getelementptr inbounds double, ptr %in, i64 %i
  %x = load <16 x double>, ptr %p, align 8
  %q = fdiv <16 x double> splat (double 1.0), %x
  %y = fadd <16 x double> %q, %x
  %o = getelementptr inbounds double, ptr %out, i64 %i
  store <16 x double> %y, ptr %o, align 8
  %next = add nuw nsw i64 %i, 16
  %more = icmp slt i64 %next, %full
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:array" }

;--- uneven.ll
target triple = "x86_64-unknown-linux-gnu"

define void @form(i64 %n, ptr %in, ptr %out, i64 %mode) #0 {
entry:
  br label %blocks

blocks:
  %i = phi i64 [ %next, %blocks ], [ 0, %entry ]
  %p = getelementptr inbounds float, ptr %in, i64 %i
  %x = load <16 x float>, ptr %p, align 4
  %q = fdiv <16 x float> splat (float 1.0), %x
  %y = fadd <16 x float> %q, %x
  %o = getelementptr inbounds float, ptr %out, i64 %i
  store <16 x float> %y, ptr %o, align 4
  %next = add nuw nsw i64 %i, 8
  %more = icmp slt i64 %next, %n
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:array" }
