; SPDX-License-Identifier: Apache-2.0
; A form for 256 bits prefers them; a caller for a CPU with wider registers prefers
; nothing. Both pass 256 bits in the same registers, and not 512.
; RUN: rm -rf %t && %split %s %t
; RUN: %opt -passes='udf-replace,verify' -udf-replace-map=%t/map.json \
; RUN:   -S %t/user.ll | %FileCheck %s
; RUN: not %opt -passes='udf-replace' -udf-replace-map=%t/wide.json \
; RUN:   -S %t/wide.ll 2>&1 | %FileCheck %s --check-prefix=WIDE

; CHECK-LABEL: define <8 x float> @user
; CHECK: call <8 x float> @__udf_expf_v8(<8 x float> %x)
; WIDE: passes the vectors of 'Sleef_expf16_u10' in other registers

;--- map.json
{"bitcode": "udf.ll", "targets": {"Sleef_expf8_u10": "__udf_expf_v8"}}

;--- wide.json
{"bitcode": "udf.ll", "targets": {"Sleef_expf16_u10": "__udf_expf_v16"}}

;--- udf.ll
target triple = "x86_64-unknown-linux-gnu"
define <8 x float> @__udf_expf_v8(<8 x float> %x) #0 {
  ret <8 x float> %x
}
define <16 x float> @__udf_expf_v16(<16 x float> %x) #0 {
  ret <16 x float> %x
}
attributes #0 = { "target-cpu"="x86-64-v3" "prefer-vector-width"="256" "min-legal-vector-width"="256" }

;--- user.ll
target triple = "x86_64-unknown-linux-gnu"
declare <8 x float> @Sleef_expf8_u10(<8 x float>)
define <8 x float> @user(<8 x float> %x) #0 {
  %y = call <8 x float> @Sleef_expf8_u10(<8 x float> %x)
  ret <8 x float> %y
}
attributes #0 = { "target-cpu"="znver4" }

;--- wide.ll
target triple = "x86_64-unknown-linux-gnu"
declare <16 x float> @Sleef_expf16_u10(<16 x float>)
define <16 x float> @user(<16 x float> %x) #0 {
  %y = call <16 x float> @Sleef_expf16_u10(<16 x float> %x)
  ret <16 x float> %y
}
attributes #0 = { "target-cpu"="znver4" }
