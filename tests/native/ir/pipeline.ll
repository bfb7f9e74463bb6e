; SPDX-License-Identifier: Apache-2.0
; The loop of an array form begins the next block before this one is done.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-pipeline,verify' -S %t/wide.ll | %FileCheck %s --check-prefix=CUT
; RUN: %opt -passes='udf-pipeline,verify' -S %t/bits.ll | %FileCheck %s --check-prefix=BITS
; RUN: %opt -passes='udf-pipeline,verify' -S %t/divided.ll | %FileCheck %s --check-prefix=DIVIDED
; RUN: %opt -passes='udf-pipeline,verify' -S %t/narrow.ll | %FileCheck %s --check-prefix=LEFT
; RUN: %opt -passes='udf-pipeline,verify' -S %t/doubles.ll | %FileCheck %s --check-prefix=DOUBLES
; RUN: %opt -passes='udf-pipeline,verify' -S %t/full.ll | %FileCheck %s --check-prefix=LEFT
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

; DOUBLES-LABEL: define void @form(
; DOUBLES: blocks:
; DOUBLES: phi <16 x double>
; DOUBLES: %ahead = select

; Left as they are: registers that are too few or too short, a loop of doubles with 52 constants
; and one value to carry, and a loop with another step.
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
  %s = fmul <16 x double> %q, %x
  %t = fmul <16 x double> %s, %s
  %u = fmul <16 x double> %t, %t
  %y = fadd <16 x double> %u, %q
  %o = getelementptr inbounds double, ptr %out, i64 %i
  store <16 x double> %y, ptr %o, align 8
  %next = add nuw nsw i64 %i, 16
  %more = icmp slt i64 %next, %full
  br i1 %more, label %blocks, label %exit

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:array" }

;--- full.ll
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
  %s0 = fadd <16 x double> %q, %x
  %s1 = fadd <16 x double> %s0, splat (double 2.0)
  %s2 = fadd <16 x double> %s1, splat (double 3.0)
  %s3 = fadd <16 x double> %s2, splat (double 4.0)
  %s4 = fadd <16 x double> %s3, splat (double 5.0)
  %s5 = fadd <16 x double> %s4, splat (double 6.0)
  %s6 = fadd <16 x double> %s5, splat (double 7.0)
  %s7 = fadd <16 x double> %s6, splat (double 8.0)
  %s8 = fadd <16 x double> %s7, splat (double 9.0)
  %s9 = fadd <16 x double> %s8, splat (double 10.0)
  %s10 = fadd <16 x double> %s9, splat (double 11.0)
  %s11 = fadd <16 x double> %s10, splat (double 12.0)
  %s12 = fadd <16 x double> %s11, splat (double 13.0)
  %s13 = fadd <16 x double> %s12, splat (double 14.0)
  %s14 = fadd <16 x double> %s13, splat (double 15.0)
  %s15 = fadd <16 x double> %s14, splat (double 16.0)
  %s16 = fadd <16 x double> %s15, splat (double 17.0)
  %s17 = fadd <16 x double> %s16, splat (double 18.0)
  %s18 = fadd <16 x double> %s17, splat (double 19.0)
  %s19 = fadd <16 x double> %s18, splat (double 20.0)
  %s20 = fadd <16 x double> %s19, splat (double 21.0)
  %s21 = fadd <16 x double> %s20, splat (double 22.0)
  %s22 = fadd <16 x double> %s21, splat (double 23.0)
  %s23 = fadd <16 x double> %s22, splat (double 24.0)
  %s24 = fadd <16 x double> %s23, splat (double 25.0)
  %s25 = fadd <16 x double> %s24, splat (double 26.0)
  %s26 = fadd <16 x double> %s25, splat (double 27.0)
  %s27 = fadd <16 x double> %s26, splat (double 28.0)
  %s28 = fadd <16 x double> %s27, splat (double 29.0)
  %s29 = fadd <16 x double> %s28, splat (double 30.0)
  %s30 = fadd <16 x double> %s29, splat (double 31.0)
  %s31 = fadd <16 x double> %s30, splat (double 32.0)
  %s32 = fadd <16 x double> %s31, splat (double 33.0)
  %s33 = fadd <16 x double> %s32, splat (double 34.0)
  %s34 = fadd <16 x double> %s33, splat (double 35.0)
  %s35 = fadd <16 x double> %s34, splat (double 36.0)
  %s36 = fadd <16 x double> %s35, splat (double 37.0)
  %s37 = fadd <16 x double> %s36, splat (double 38.0)
  %s38 = fadd <16 x double> %s37, splat (double 39.0)
  %s39 = fadd <16 x double> %s38, splat (double 40.0)
  %s40 = fadd <16 x double> %s39, splat (double 41.0)
  %s41 = fadd <16 x double> %s40, splat (double 42.0)
  %s42 = fadd <16 x double> %s41, splat (double 43.0)
  %s43 = fadd <16 x double> %s42, splat (double 44.0)
  %s44 = fadd <16 x double> %s43, splat (double 45.0)
  %s45 = fadd <16 x double> %s44, splat (double 46.0)
  %s46 = fadd <16 x double> %s45, splat (double 47.0)
  %s47 = fadd <16 x double> %s46, splat (double 48.0)
  %s48 = fadd <16 x double> %s47, splat (double 49.0)
  %s49 = fadd <16 x double> %s48, splat (double 50.0)
  %s50 = fadd <16 x double> %s49, splat (double 51.0)
  %s51 = fadd <16 x double> %s50, splat (double 52.0)
  %y = fmul <16 x double> %s51, %x
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
