; SPDX-License-Identifier: Apache-2.0
; A target that the module defines keeps everything but its body.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/map.json \
; RUN:   -udf-report=%t/report.json -S %t/user.ll | %FileCheck %s
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t/report.json

; References hold: they name the same function.
; CHECK: @table = global [1 x ptr] [ptr @expf]
; CHECK: @alias = alias float (float), ptr @expf

; CHECK: define linkonce_odr hidden float @expf(float noundef %x) unnamed_addr #[[ATTRS:[0-9]+]] comdat align 32
; CHECK-NEXT: entry:
; CHECK-NEXT: %0 = tail call float @__udf_expf(float %x)
; CHECK-NEXT: ret float %0
; CHECK-NEXT: }

; CHECK: define float @user(float %x)
; CHECK: call float @expf(float %x)

; The UDF's own call of expf means the function as it was.
; CHECK: define internal float @__udf_expf(float %x)
; CHECK: call float @__udf_original.expf(float %x)
; CHECK: define internal float @__udf_original.expf(float noundef %x)
; CHECK: fmul float %x, 2.000000e+00

; The new body may throw, recurse and touch memory; the rest of the old
; function's attributes stays.
; CHECK: attributes #[[ATTRS]] = { noinline memory(readwrite) "mine"="yes" "udf-replaced"="__udf_expf" }

; REPORT: {"addresses":0,"bodies":1,"calls":0,"intrinsics":0,
; REPORT-SAME: "pass":"udf-replace","replacement":"__udf_expf","stage":"whole","target":"expf"}

;--- map.json
{"bitcode": "udf.ll", "targets": {"expf": "__udf_expf", "absent": "__udf_expf"}}

;--- udf.ll
declare float @expf(float)
declare void @log(float)
define float @__udf_expf(float %x) {
  %y = call float @expf(float %x)
  call void @log(float %y)
  ret float %y
}

;--- user.ll
$expf = comdat any
@table = global [1 x ptr] [ptr @expf]
@alias = alias float (float), ptr @expf
define linkonce_odr hidden float @expf(float noundef %x) unnamed_addr #0 comdat align 32 {
  %y = fmul float %x, 2.0
  ret float %y
}
define float @user(float %x) {
  %y = call float @expf(float %x)
  ret float %y
}
attributes #0 = { noinline norecurse nounwind willreturn memory(none) "mine"="yes" }
