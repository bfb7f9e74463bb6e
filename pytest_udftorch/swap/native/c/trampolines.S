//===- trampolines.S - count or mark a call, then jump on -----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A trampoline stands in a jump slot in front of the function proper. It may
// touch nothing but the flags: arguments of every ABI that PyTorch calls
// (xmm, ymm, zmm, integer registers, stack) pass through. On AArch64 it may use
// x16 and x17, which belong to the linker between a call and its function, and
// x15, a temporary of callees (AAPCS64, 6.1.1).
//
//===----------------------------------------------------------------------===//

#define UDFRT_TRAMPOLINES 512 // as in udfrt.h, which _Static_asserts the size

	.section .note.GNU-stack,"",%progbits

	.bss
	.balign 64
	.globl	udfrt_hits
	.type	udfrt_hits,%object
	.size	udfrt_hits, 8*UDFRT_TRAMPOLINES
udfrt_hits:
	.zero	8*UDFRT_TRAMPOLINES
	.balign 64
	.globl	udfrt_targets
	.type	udfrt_targets,%object
	.size	udfrt_targets, 8*UDFRT_TRAMPOLINES
udfrt_targets:
	.zero	8*UDFRT_TRAMPOLINES
	.balign 64
	.globl	udfrt_marks
	.type	udfrt_marks,%object
	.size	udfrt_marks, UDFRT_TRAMPOLINES
udfrt_marks:
	.zero	UDFRT_TRAMPOLINES
	.balign 64
	.globl	udfrt_marked
	.type	udfrt_marked,%object
	.size	udfrt_marked, 8*UDFRT_TRAMPOLINES
udfrt_marked:
	.zero	8*UDFRT_TRAMPOLINES

	// Aliases that the assembler resolves inside this object: the exported
	// names may be interposed and so cannot be addressed relative to rip.
	.set	.Lhits, udfrt_hits
	.set	.Ltargets, udfrt_targets
	.set	.Lmarks, udfrt_marks
	.set	.Lmarked, udfrt_marked

	.text
	.balign 64
	.hidden	udfrt_trampolines
	.globl	udfrt_trampolines
	.type	udfrt_trampolines,%function
udfrt_trampolines:
#if defined(__x86_64__)
	.set	i, 0
	.rept	UDFRT_TRAMPOLINES
	.balign 32
	endbr64
	lock incq	.Lhits+8*i(%rip)
	jmpq	*.Ltargets+8*i(%rip)
	.set	i, i+1
	.endr
#elif defined(__aarch64__)
	.set	i, 0
	.rept	UDFRT_TRAMPOLINES
	.balign 64
	hint	#34			// bti c
	adrp	x16, .Lhits+8*i
	add	x16, x16, #:lo12:.Lhits+8*i
0:	ldxr	x17, [x16]
	add	x17, x17, #1
	stxr	w15, x17, [x16]
	cbnz	w15, 0b
	adrp	x16, .Ltargets+8*i
	ldr	x16, [x16, #:lo12:.Ltargets+8*i]
	br	x16
	.set	i, i+1
	.endr
#endif
	.size	udfrt_trampolines, .-udfrt_trampolines

	// These write only once, so threads do not contend for the line.
	.balign 64
	.hidden	udfrt_markers
	.globl	udfrt_markers
	.type	udfrt_markers,%function
udfrt_markers:
#if defined(__x86_64__)
	.set	i, 0
	.rept	UDFRT_TRAMPOLINES
	.balign 32
	endbr64
	cmpb	$0, .Lmarks+i(%rip)
	jne	1f
	movb	$1, .Lmarks+i(%rip)
1:	jmpq	*.Lmarked+8*i(%rip)
	.set	i, i+1
	.endr
#elif defined(__aarch64__)
	.set	i, 0
	.rept	UDFRT_TRAMPOLINES
	.balign 64
	hint	#34			// bti c
	adrp	x16, .Lmarks+i
	add	x16, x16, #:lo12:.Lmarks+i
	ldrb	w17, [x16]
	cbnz	w17, 1f
	mov	w17, #1
	strb	w17, [x16]
1:	adrp	x16, .Lmarked+8*i
	ldr	x16, [x16, #:lo12:.Lmarked+8*i]
	br	x16
	.set	i, i+1
	.endr
#endif
	.size	udfrt_markers, .-udfrt_markers
