; SPDX-License-Identifier: Apache-2.0
; Double divisions and roots of the named functions become sequences without a branch, step by
; step as written here; other types and other functions keep their instructions.
; RUN: %opt -passes='udf-branchless,verify' -udf-branchless-functions=quotient,root,twice,none \
; RUN:   -udf-report=%t.json -S %s | %FileCheck %s
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t.json
; The control: without the pass nothing is replaced.
; RUN: %opt -passes=verify -S %s | %FileCheck %s --check-prefix=CONTROL
; CONTROL-COUNT-6: fdiv
; CONTROL-NOT: approx

; CHECK-LABEL: define double @quotient(double %a, double %b)
; CHECK-NEXT: %[[N:.*]] = fneg double %b
; CHECK-NEXT: %[[R0:.*]] = call double @llvm.nvvm.rcp.approx.ftz.d(double %b)
; CHECK-NEXT: %[[E:.*]] = call double @llvm.fma.f64(double %[[N]], double %[[R0]], double 1.0{{.*}})
; CHECK-NEXT: %[[S:.*]] = call double @llvm.fma.f64(double %[[E]], double %[[E]], double %[[E]])
; CHECK-NEXT: %[[R:.*]] = call double @llvm.fma.f64(double %[[R0]], double %[[S]], double %[[R0]])
; CHECK-NEXT: %q = fmul double %a, %[[R]]
; CHECK-NEXT: ret double %q
define double @quotient(double %a, double %b) {
  %q = fdiv double %a, %b
  ret double %q
}

; CHECK-LABEL: define double @root(double %x)
; CHECK-NEXT: %[[R:.*]] = call double @llvm.nvvm.rsqrt.approx.ftz.d(double %x)
; CHECK-NEXT: %[[S:.*]] = fmul double %x, %[[R]]
; CHECK-NEXT: %[[N:.*]] = fneg double %[[S]]
; CHECK-NEXT: %[[E:.*]] = call double @llvm.fma.f64(double %[[N]], double %[[R]], double 1.0{{.*}})
; CHECK-NEXT: %[[P:.*]] = call double @llvm.fma.f64(double %[[E]], double 3.75{{.*}}e-01, double 5.0{{.*}}e-01)
; CHECK-NEXT: %[[D:.*]] = fmul double %[[S]], %[[E]]
; CHECK-NEXT: %[[Y:.*]] = call double @llvm.fma.f64(double %[[D]], double %[[P]], double %[[S]])
; CHECK-NEXT: %[[ZERO:.*]] = fcmp oeq double %x, 0.0{{.*}}
; CHECK-NEXT: %s = select i1 %[[ZERO]], double %x, double %[[Y]]
; CHECK-NEXT: ret double %s
define double @root(double %x) {
  %s = call double @llvm.sqrt.f64(double %x)
  ret double %s
}

; Of the flags those stay that speak of the result. One has no product with it.
; CHECK-LABEL: define double @twice(double %a, double %b)
; CHECK: %q = fmul nnan ninf nsz double %a, %
; CHECK: %[[S:.*]] = call double @llvm.fma.f64(
; CHECK: %r = call nnan double @llvm.fma.f64(double %[[R0:.*]], double %{{.*}}, double %[[R0]])
; CHECK: ret double
; CHECK-NOT: arcp
; CHECK-NOT: fast
define double @twice(double %a, double %b) {
  %q = fdiv fast double %a, %b
  %r = fdiv nnan arcp double 1.0, %q
  ret double %r
}

; CHECK-LABEL: define float @none(float %a, float %b)
; CHECK-NEXT: fdiv float %a, %b
define float @none(float %a, float %b) {
  %q = fdiv float %a, %b
  ret float %q
}

; CHECK-LABEL: define double @unnamed(double %a, double %b)
; CHECK-NEXT: fdiv double %a, %b
; CHECK-NEXT: call double @llvm.sqrt.f64
define double @unnamed(double %a, double %b) {
  %q = fdiv double %a, %b
  %s = call double @llvm.sqrt.f64(double %q)
  ret double %s
}

; REPORT: {"divisions":1,"function":"quotient","module":"{{.*}}","pass":"udf-branchless","roots":0}
; REPORT: {"divisions":0,"function":"root","module":"{{.*}}","pass":"udf-branchless","roots":1}
; REPORT: {"divisions":2,"function":"twice",
; REPORT: {"divisions":0,"function":"none",

define double @also_unnamed(double %a, double %b) {
  %q = fdiv double %a, %b
  ret double %q
}
declare double @llvm.sqrt.f64(double)
