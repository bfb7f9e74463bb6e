; SPDX-License-Identifier: Apache-2.0
; Look-ups of a form in a table of two registers at most become calls with vector
; variants, and in the end permutations.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-tables,verify' -S %t/wide.ll | %FileCheck %s --check-prefixes=CALL,CALL512
; RUN: %opt -passes='udf-tables,verify' -S %t/narrow.ll | %FileCheck %s --check-prefixes=CALL,CALL256
; A call that no vectoriser took is the load again.
; RUN: %opt -passes='udf-tables,udf-tables<late>,verify' -S %t/wide.ll | %FileCheck %s --check-prefix=BACK
; RUN: %opt -passes='udf-tables,loop-vectorize,udf-tables<late>,verify' -S %t/wide.ll | %FileCheck %s --check-prefix=VECTOR
; RUN: %opt -passes='udf-tables,verify' -S %t/others.ll | %FileCheck %s --check-prefix=OTHERS

; CALL-LABEL: define float @form(
; CALL: %[[BITS:.*]] = and i32 %u, 15
; CALL: call float @__udf_table.table(i32 %u) #[[VARIANTS:[0-9]+]]
; CALL-LABEL: define internal float @__udf_table.table(i32 %0)
; CALL: %[[MASKED:.*]] = and i32 %0, 15
; CALL: zext i32 %[[MASKED]] to i64
; CALL: load float
; CALL-LABEL: define internal <8 x float> @__udf_table.table.v8(<8 x i32> %0)
; CALL256: %[[LOW:.*]] = call <8 x float> @llvm.x86.avx2.permps(<8 x float> <float 0.{{.*}}float 7.000000e+00>, <8 x i32> %0)
; CALL256: %[[HIGH:.*]] = call <8 x float> @llvm.x86.avx2.permps(<8 x float> <float 8.{{.*}}float 1.500000e+01>, <8 x i32> %0)
; CALL256: call <8 x float> @llvm.x86.avx.blendv.ps.256(<8 x float> %[[LOW]], <8 x float> %[[HIGH]]
; CALL512: shufflevector <8 x i32> %0
; CALL512: call <16 x float> @llvm.x86.avx512.permvar.sf.512
; CALL512: shufflevector <16 x float>
; CALL512-LABEL: define internal <16 x float> @__udf_table.table.v16(<16 x i32> %0)
; CALL512: call <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> <float 0.{{.*}}float 1.500000e+01>, <16 x i32> %0)
; CALL256-NOT: v16
; CALL: attributes #[[VARIANTS]] = { "vector-function-abi-variant"="_ZGV_LLVM_N8v___udf_table.table(__udf_table.table.v8)

; BACK-LABEL: define float @form(
; BACK: getelementptr inbounds [16 x float], ptr @table, i64 0, i64
; BACK: load float
; BACK-NOT: __udf_table

; VECTOR-LABEL: define void @form_array(
; VECTOR: call <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> <float 0.{{.*}}>, <16 x i32> %{{.*}})
; VECTOR-NOT: __udf_table

; Left as they are: more than two registers, an index that may be out of bounds, a
; table that can change, a volatile load, a function that is no form.
; OTHERS-NOT: __udf_table

; A load of an entry's encoding is a look-up, too.
; RUN: %opt -passes='udf-tables,verify' -S %t/bits.ll | %FileCheck %s --check-prefix=ENCODING
; ENCODING-LABEL: define i32 @form(
; ENCODING: %[[ENTRY:.*]] = call float @__udf_table.table(i32 %u)
; ENCODING: bitcast float %[[ENTRY]] to i32

; With AVX-512 an entry that becomes a double is looked up as one, and so is the sum of
; two at one index. The floats' tables are then of no use.
; RUN: %opt -passes='udf-tables,verify' -S %t/doubles.ll | %FileCheck %s --check-prefix=DOUBLE
; RUN: %opt -passes='udf-tables,loop-vectorize,udf-tables<late>,verify' -S %t/doubles.ll | %FileCheck %s --check-prefix=DOUBLES
; DOUBLE-DAG: @high.double.sum = private unnamed_addr constant [16 x double] [double 1.000000e+00, double 1.500000e+00,
; DOUBLE-DAG: @low.double = private unnamed_addr constant [16 x double] [double 1.000000e+00, double 5.000000e-01,
; DOUBLE-DAG: @long.double = private unnamed_addr constant [32 x double]
; DOUBLE-LABEL: define double @sum(
; DOUBLE-NOT: fpext
; DOUBLE: %[[SUM:.*]] = call double @__udf_table.high.double.sum(i64 %u)
; DOUBLE: ret double %[[SUM]]
; A summand that is needed apart is looked up apart.
; DOUBLE-LABEL: define double @sum_and_summand(
; DOUBLE-DAG: call double @__udf_table.high.double.sum{{.*}}(i64 %u)
; DOUBLE-DAG: call double @__udf_table.low.double(i64 %u)
; At two indices there is no sum of entries.
; DOUBLE-LABEL: define double @two_indices(
; DOUBLE-DAG: %[[A:.*]] = call double @__udf_table.high.double{{.*}}(i64 %u)
; DOUBLE-DAG: %[[B:.*]] = call double @__udf_table.low.double{{.*}}(i64 %v)
; DOUBLE: fadd double %[[A]], %[[B]]
; DOUBLE-LABEL: define double @long_table(
; DOUBLE: call double @__udf_table.long.double(i64 %u)
; DOUBLE-LABEL: define internal <4 x double> @__udf_table.long.double.v4(<4 x i64> %0)
; DOUBLE: shufflevector <4 x i64> %0
; DOUBLE: shufflevector <8 x double>
; DOUBLE-LABEL: define internal <8 x double> @__udf_table.long.double.v8(<8 x i64> %0)
; DOUBLE: %[[LOW:.*]] = call <8 x double> @llvm.x86.avx512.vpermi2var.pd.512(<8 x double> <double 0.{{.*}}double 1.500000e+01>)
; DOUBLE: %[[HIGH:.*]] = call <8 x double> @llvm.x86.avx512.vpermi2var.pd.512(<8 x double> <double 1.600000e+01,
; DOUBLE: %[[BIT:.*]] = and <8 x i64> %0,
; DOUBLE: %[[UPPER:.*]] = icmp ne <8 x i64> %[[BIT]], zeroinitializer
; DOUBLE: select <8 x i1> %[[UPPER]], <8 x double> %[[HIGH]], <8 x double> %[[LOW]]
; DOUBLES-LABEL: define void @sum_array(
; DOUBLES-NOT: load <{{.*}} x float>
; DOUBLES: call <8 x double> @llvm.x86.avx512.vpermi2var.pd.512(

; A CPU with AVX2 does not permute doubles.
; RUN: sed 's/x86-64-v4/x86-64-v3/' %t/doubles.ll > %t/doubles-avx2.ll
; RUN: %opt -passes='udf-tables,verify' -S %t/doubles-avx2.ll | %FileCheck %s --check-prefix=FLOATS
; FLOATS-NOT: x double]
; FLOATS-LABEL: define double @sum(
; FLOATS: call float @__udf_table.high(
; FLOATS: call float @__udf_table.low(
; FLOATS: fadd double

; A load of half an entry is none.
; RUN: %opt -passes='udf-tables,verify' -S %t/halves.ll | %FileCheck %s --check-prefix=HALVES
; HALVES-NOT: __udf_table

;--- bits.ll
target triple = "x86_64-unknown-linux-gnu"

@table = internal constant [8 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0]

define i32 @form(i32 %u) #0 {
  %i = and i32 %u, 7
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load i32, ptr %p, align 4
  ret i32 %y
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v16" }

;--- doubles.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

@high = internal constant [16 x float] [float 0.00, float 1.00, float 2.00, float 3.00, float 4.00, float 5.00, float 6.00, float 7.00, float 8.00, float 9.00, float 10.00, float 11.00, float 12.00, float 13.00, float 14.00, float 15.00]
@low = internal constant [16 x float] [float 1.00, float 0.50, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25, float 0.25]
@long = internal constant [32 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0, float 14.0, float 15.0, float 16.0, float 17.0, float 18.0, float 19.0, float 20.0, float 21.0, float 22.0, float 23.0, float 24.0, float 25.0, float 26.0, float 27.0, float 28.0, float 29.0, float 30.0, float 31.0]

define double @sum(i64 %u) #0 {
  %i = and i64 %u, 15
  %p = getelementptr inbounds [16 x float], ptr @high, i64 0, i64 %i
  %a = load float, ptr %p, align 4
  %x = fpext float %a to double
  %q = getelementptr inbounds [16 x float], ptr @low, i64 0, i64 %i
  %b = load float, ptr %q, align 4
  %y = fpext float %b to double
  %z = fadd double %x, %y
  ret double %z
}

define double @sum_and_summand(i64 %u) #0 {
  %i = and i64 %u, 15
  %p = getelementptr inbounds [16 x float], ptr @high, i64 0, i64 %i
  %a = load float, ptr %p, align 4
  %x = fpext float %a to double
  %q = getelementptr inbounds [16 x float], ptr @low, i64 0, i64 %i
  %b = load float, ptr %q, align 4
  %y = fpext float %b to double
  %z = fadd double %x, %y
  %t = fmul double %z, %y
  ret double %t
}

define double @two_indices(i64 %u, i64 %v) #0 {
  %i = and i64 %u, 15
  %p = getelementptr inbounds [16 x float], ptr @high, i64 0, i64 %i
  %a = load float, ptr %p, align 4
  %x = fpext float %a to double
  %j = and i64 %v, 15
  %q = getelementptr inbounds [16 x float], ptr @low, i64 0, i64 %j
  %b = load float, ptr %q, align 4
  %y = fpext float %b to double
  %z = fadd double %x, %y
  ret double %z
}

define double @long_table(i64 %u) #0 {
  %i = and i64 %u, 31
  %p = getelementptr inbounds [32 x float], ptr @long, i64 0, i64 %i
  %a = load float, ptr %p, align 4
  %x = fpext float %a to double
  ret double %x
}

define void @sum_array(ptr noalias %in, ptr noalias %out) #1 {
entry:
  br label %loop

loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
  %e = getelementptr inbounds i64, ptr %in, i64 %n
  %u = load i64, ptr %e, align 8
  %i = and i64 %u, 15
  %p = getelementptr inbounds [16 x float], ptr @high, i64 0, i64 %i
  %a = load float, ptr %p, align 4
  %x = fpext float %a to double
  %q = getelementptr inbounds [16 x float], ptr @low, i64 0, i64 %i
  %b = load float, ptr %q, align 4
  %y = fpext float %b to double
  %z = fadd double %x, %y
  %o = getelementptr inbounds double, ptr %out, i64 %n
  store double %z, ptr %o, align 8
  %next = add nuw nsw i64 %n, 1
  %last = icmp eq i64 %next, 64
  br i1 %last, label %exit, label %loop, !llvm.loop !0

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v8" }
attributes #1 = { nounwind "prefer-vector-width"="512" "target-cpu"="x86-64-v4" "udf-widen"="f:array" }
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.width", i32 8}

;--- halves.ll
target triple = "x86_64-unknown-linux-gnu"

@table = internal constant [8 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0]

define i16 @form(i32 %u) #0 {
  %i = and i32 %u, 7
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load i16, ptr %p, align 4
  ret i16 %y
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v16" }

;--- wide.ll
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

@table = internal constant [16 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0, float 14.0, float 15.0]

define float @form(i32 %u) #0 {
  %i = and i32 %u, 15
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [16 x float], ptr @table, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

define void @form_array(ptr noalias %in, ptr noalias %out) #1 {
entry:
  br label %loop

loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a = getelementptr inbounds i32, ptr %in, i64 %n
  %u = load i32, ptr %a, align 4
  %i = and i32 %u, 15
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [16 x float], ptr @table, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  %b = getelementptr inbounds float, ptr %out, i64 %n
  store float %y, ptr %b, align 4
  %next = add nuw nsw i64 %n, 1
  %last = icmp eq i64 %next, 64
  br i1 %last, label %exit, label %loop, !llvm.loop !0

exit:
  ret void
}

attributes #0 = { nounwind "target-cpu"="x86-64-v4" "udf-widen"="f:v16" }
attributes #1 = { nounwind "prefer-vector-width"="512" "target-cpu"="x86-64-v4" "udf-widen"="f:array" }
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.width", i32 16}

;--- narrow.ll
target triple = "x86_64-unknown-linux-gnu"

@table = internal constant [16 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0, float 14.0, float 15.0]

define float @form(i32 %u) #0 {
  %i = and i32 %u, 15
  %j = zext i32 %i to i64
  %p = getelementptr inbounds float, ptr @table, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

attributes #0 = { nounwind "target-cpu"="x86-64-v3" "udf-widen"="f:v8" }

;--- others.ll
target triple = "x86_64-unknown-linux-gnu"

@table = internal constant [8 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0]
@variable = internal global [8 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0]
@larger = internal constant [32 x float] [float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0]

define float @large_table(i32 %u) #0 {
  %i = and i32 %u, 31
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [32 x float], ptr @larger, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

define float @unbounded(i64 %j) #0 {
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

define float @too_wide_a_mask(i32 %u) #0 {
  %i = and i32 %u, 15
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

define float @can_change(i32 %u) #0 {
  %i = and i32 %u, 7
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @variable, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

define float @is_volatile(i32 %u) #0 {
  %i = and i32 %u, 7
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load volatile float, ptr %p, align 4
  ret float %y
}

define float @old_cpu(i32 %u) #1 {
  %i = and i32 %u, 7
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

define float @no_form(i32 %u) #2 {
  %i = and i32 %u, 7
  %j = zext i32 %i to i64
  %p = getelementptr inbounds [8 x float], ptr @table, i64 0, i64 %j
  %y = load float, ptr %p, align 4
  ret float %y
}

attributes #0 = { nounwind "target-cpu"="x86-64-v3" "udf-widen"="f:v8" }
attributes #1 = { nounwind "target-cpu"="x86-64-v2" "udf-widen"="f:array" }
attributes #2 = { nounwind "target-cpu"="x86-64-v3" }
