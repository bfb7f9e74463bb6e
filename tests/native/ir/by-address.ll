; SPDX-License-Identifier: Apache-2.0
; A structure that a local function takes by value becomes the address of a copy that the caller
; makes. A function that others may call, or whose address is taken, stays as it is.
; RUN: rm -f %t.json
; RUN: %opt -passes='udf-by-address,verify' -udf-report=%t.json -S %s | %FileCheck %s
; RUN: %FileCheck %s --check-prefix=REPORT --input-file=%t.json

%pair = type { double, double }

; CHECK-LABEL: define internal double @sum(ptr align 16 %p, double %x)
define internal double @sum(ptr byval(%pair) align 16 %p, double %x) memory(none) {
  %a = load double, ptr %p
  %s = fadd double %a, %x
  store double %s, ptr %p
  ret double %s
}

; CHECK-LABEL: define double @open(ptr byval(%pair) %p)
define double @open(ptr byval(%pair) %p) {
  %a = load double, ptr %p
  ret double %a
}

; CHECK-LABEL: define internal double @taken(ptr byval(%pair) %p)
define internal double @taken(ptr byval(%pair) %p) {
  %a = load double, ptr %p
  ret double %a
}
@table = internal constant ptr @taken

; CHECK-LABEL: define double @udf(double %x)
; CHECK: %[[COPY:.*]] = alloca %pair, align 16
; CHECK: call void @llvm.memcpy.p0.p0.i64(ptr align 16 %[[COPY]], ptr align 8 %here, i64 16, i1 false)
; CHECK-NEXT: call double @sum(ptr align 8 %[[COPY]], double %x) #[[EFFECTS:[0-9]+]]
; CHECK: call double @open(ptr byval(%pair) %here)
; CHECK: attributes #[[EFFECTS]] = { memory(argmem: readwrite) }
define double @udf(double %x) {
  %here = alloca %pair
  store double %x, ptr %here
  %s = tail call double @sum(ptr byval(%pair) align 8 %here, double %x) memory(none)
  %o = call double @open(ptr byval(%pair) %here)
  %t = load ptr, ptr @table
  %v = call double %t(ptr byval(%pair) %here)
  %u = fadd double %s, %o
  %w = fadd double %u, %v
  ret double %w
}

; REPORT: {"function":"sum","module":"{{.*}}","parameters":1,"pass":"udf-by-address"}
; REPORT-NOT: function
