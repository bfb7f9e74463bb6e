//===- udfrt.c - jump slots and call counters of a running process --------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Sources of the method: System V ABI, AMD64 supplement (relocation types,
// procedure linkage table); ELF for the Arm 64-bit Architecture, "Dynamic
// relocations"; System V gABI, "Dynamic Section" and "Program Header"; the LSB
// core specification, "Symbol Versioning".
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include "udfrt.h"
#include "glibc.h"
#include "names.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

UDFTORCH_OLD(dlclose);
UDFTORCH_OLD(dlopen);
UDFTORCH_OLD(dlsym);
UDFTORCH_OLD(dlvsym);

extern const char udfrt_trampolines[], udfrt_markers[];

// The .balign of trampolines.S.
#if defined(__aarch64__)
enum { TrampolineBytes = 64 };
#else
enum { TrampolineBytes = 32 };
#endif

int udfrt_abi(void) { return UDFRT_ABI; }

#if defined(__x86_64__)
enum { ThisMachine = EM_X86_64 };

int udfrt_cpu_level(void) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return 4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    return 3;
  return __builtin_cpu_supports("sse4.2") ? 2 : 1;
}

uint32_t udfrt_mxcsr(void) { return __builtin_ia32_stmxcsr(); }
#elif defined(__aarch64__)
enum { ThisMachine = EM_AARCH64 };

int udfrt_cpu_level(void) { return 1; } // AdvSIMD belongs to every AArch64

/// FPCR.FZ flushes subnormal operands and results, as FTZ and DAZ do together.
uint32_t udfrt_mxcsr(void) {
  uint64_t Fpcr;
  __asm__ volatile("mrs %0, fpcr" : "=r"(Fpcr));
  return Fpcr & (1u << 24) ? 1u << 15 | 1u << 6 : 0;
}
#else
#error "the runtime has no trampolines for this processor"
#endif

static uint64_t nth(const char *First, size_t Index) {
  return Index < UDFRT_TRAMPOLINES
             ? (uint64_t)(uintptr_t)(First + Index * TrampolineBytes)
             : 0;
}

uint64_t udfrt_trampoline(size_t index) {
  return nth(udfrt_trampolines, index);
}

uint64_t udfrt_marker(size_t index) { return nth(udfrt_markers, index); }

//===----------------------------------------------------------------------===//
// Finding slots
//===----------------------------------------------------------------------===//

struct Dynamic {
  const ElfW(Sym) * Symbols;
  const char *Strings;
  const ElfW(Rela) * Rela, *Plt;
  size_t RelaCount, PltCount;
  const uint16_t *Versions;
  const char *VersionNeeds;
  size_t VersionNeedCount;
};

/// The relocations of a machine whose slots hold the address of a symbol.
struct Machine {
  uint16_t Number; // e_machine
  uint32_t JumpSlot, GlobDat, Absolute;
};

static const struct Machine Machines[] = {
    {EM_X86_64, R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64},
    {EM_AARCH64, R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64},
};

static const struct Machine *machineOf(uint16_t Number) {
  for (size_t I = 0; I < sizeof Machines / sizeof *Machines; ++I)
    if (Machines[I].Number == Number)
      return &Machines[I];
  return NULL;
}

struct Search {
  struct names Names;
  const struct Machine *Machine;
  const char *const *Objects;
  size_t ObjectCount;
  struct udfrt_slot *Slots;
  size_t Capacity;
  long Found; // -1 after an error
};

static int readDynamic(const struct dl_phdr_info *Info, struct Dynamic *D) {
  const ElfW(Dyn) *Entry = NULL;
  memset(D, 0, sizeof *D);
  for (int I = 0; I < Info->dlpi_phnum; ++I)
    if (Info->dlpi_phdr[I].p_type == PT_DYNAMIC)
      Entry = (const void *)(Info->dlpi_addr + Info->dlpi_phdr[I].p_vaddr);
  if (!Entry)
    return -1;
  for (; Entry->d_tag != DT_NULL; ++Entry) {
    // glibc adds the load address to most of these pointers in place, but not
    // to DT_VERNEED. Other loaders add it to none of them.
    ElfW(Addr) Value = Entry->d_un.d_ptr;
    const void *Pointer =
        (const void *)(Value < Info->dlpi_addr ? Info->dlpi_addr + Value
                                               : Value);
    switch (Entry->d_tag) {
    case DT_SYMTAB:
      D->Symbols = Pointer;
      break;
    case DT_STRTAB:
      D->Strings = Pointer;
      break;
    case DT_RELA:
      D->Rela = Pointer;
      break;
    case DT_RELASZ:
      D->RelaCount = Entry->d_un.d_val / sizeof(ElfW(Rela));
      break;
    case DT_JMPREL:
      D->Plt = Pointer;
      break;
    case DT_PLTRELSZ:
      D->PltCount = Entry->d_un.d_val / sizeof(ElfW(Rela));
      break;
    case DT_VERSYM:
      D->Versions = Pointer;
      break;
    case DT_VERNEED:
      D->VersionNeeds = Pointer;
      break;
    case DT_VERNEEDNUM:
      D->VersionNeedCount = Entry->d_un.d_val;
      break;
    }
  }
  return D->Symbols && D->Strings ? 0 : -1;
}

static const char *versionOf(const struct Dynamic *D, size_t Symbol) {
  if (!D->Versions || !D->VersionNeeds)
    return "";
  uint16_t Index = D->Versions[Symbol] & 0x7fff; // bit 15: hidden
  const char *Need = D->VersionNeeds;
  for (size_t I = 0; I < D->VersionNeedCount; ++I) {
    const ElfW(Verneed) *N = (const void *)Need;
    const char *Aux = Need + N->vn_aux;
    for (unsigned J = 0; J < N->vn_cnt; ++J) {
      const ElfW(Vernaux) *A = (const void *)Aux;
      if (A->vna_other == Index)
        return D->Strings + A->vna_name;
      Aux += A->vna_next;
    }
    Need += N->vn_next;
  }
  return "";
}

static int inRelro(const struct dl_phdr_info *Info, ElfW(Addr) Address) {
  for (int I = 0; I < Info->dlpi_phnum; ++I) {
    const ElfW(Phdr) *P = &Info->dlpi_phdr[I];
    ElfW(Addr) Start = Info->dlpi_addr + P->p_vaddr;
    if (P->p_type == PT_GNU_RELRO && Address >= Start &&
        Address < Start + P->p_memsz)
      return 1;
  }
  return 0;
}

static void scanTable(struct Search *S, const struct dl_phdr_info *Info,
                      const struct Dynamic *D, uint32_t Object,
                      const ElfW(Rela) * Table, size_t Count) {
  for (size_t I = 0; I < Count; ++I) {
    uint32_t Type = ELF64_R_TYPE(Table[I].r_info);
    if (Type != S->Machine->JumpSlot && Type != S->Machine->GlobDat &&
        !(Type == S->Machine->Absolute && Table[I].r_addend == 0))
      continue;
    size_t Symbol = ELF64_R_SYM(Table[I].r_info);
    if (!Symbol)
      continue;
    const char *Name = D->Strings + D->Symbols[Symbol].st_name;
    // Nearly all are of C++. Those of vector functions begin alike.
    if (!strncmp(Name, "_Z", 2) && strncmp(Name, "_ZGV", 4))
      continue;
    long Index = namesFind(&S->Names, Name);
    if (Index < 0)
      continue;
    if ((size_t)S->Found < S->Capacity) {
      struct udfrt_slot *Slot = &S->Slots[S->Found];
      memset(Slot, 0, sizeof *Slot);
      Slot->address = Info->dlpi_addr + Table[I].r_offset;
      Slot->symbol = (uint32_t)Index;
      Slot->object = Object;
      Slot->type = Type;
      Slot->relro = (uint32_t)inRelro(Info, Slot->address);
      strncpy(Slot->version, versionOf(D, Symbol), sizeof Slot->version - 1);
    }
    ++S->Found;
  }
}

static int scanObject(struct Search *S, const struct dl_phdr_info *Info,
                      uint32_t Object) {
  struct Dynamic D;
  if (readDynamic(Info, &D)) {
    S->Found = -1;
    return 1;
  }
  scanTable(S, Info, &D, Object, D.Plt, D.PltCount);
  scanTable(S, Info, &D, Object, D.Rela, D.RelaCount);
  return 0;
}

static int visitObject(struct dl_phdr_info *Info, size_t Size, void *Data) {
  (void)Size;
  struct Search *S = Data;
  const char *Slash = strrchr(Info->dlpi_name, '/');
  const char *Name = Slash ? Slash + 1 : Info->dlpi_name;
  for (size_t O = 0; O < S->ObjectCount; ++O)
    if (!strcmp(Name, S->Objects[O]) && scanObject(S, Info, (uint32_t)O))
      return 1;
  return 0;
}

long udfrt_find(const char *const *symbols, size_t symbol_count,
                const char *const *objects, size_t object_count,
                struct udfrt_slot *slots, size_t capacity) {
  struct Search S = {.Machine = machineOf(ThisMachine),
                     .Objects = objects,
                     .ObjectCount = object_count,
                     .Slots = slots,
                     .Capacity = capacity};
  if (namesMake(&S.Names, symbols, symbol_count, symbol_count))
    return -1;
  dl_iterate_phdr(visitObject, &S);
  free(S.Names.buckets);
  return S.Found;
}

/// An address, and the object that it lies in.
struct Place {
  uint64_t Address, Start;
};

static int holds(struct dl_phdr_info *Info, size_t Size, void *Data) {
  (void)Size;
  struct Place *P = Data;
  uint64_t First = UINT64_MAX;
  int Inside = 0;
  for (int I = 0; I < Info->dlpi_phnum; ++I) {
    const ElfW(Phdr) *Part = &Info->dlpi_phdr[I];
    if (Part->p_type != PT_LOAD)
      continue;
    uint64_t Start = Info->dlpi_addr + Part->p_vaddr;
    First = Start < First ? Start : First;
    Inside |= P->Address >= Start && P->Address - Start < Part->p_memsz;
  }
  if (Inside)
    P->Start = First;
  return Inside;
}

uint64_t udfrt_object(uint64_t address) {
  struct Place P = {.Address = address};
  dl_iterate_phdr(holds, &P);
  return P.Start;
}

/// A file laid out as a loader would, without relocation.
struct Image {
  struct dl_phdr_info Info;
  size_t Bytes; // from dlpi_addr on
  uint16_t Machine;
};

/// The program headers' own bounds are checked. What the segments hold is
/// trusted as much as a loaded object.
static int mapSegments(int File, const ElfW(Ehdr) * Header, size_t FileBytes,
                       struct Image *I) {
  const ElfW(Phdr) *P = I->Info.dlpi_phdr;
  uint64_t Page = (uint64_t)sysconf(_SC_PAGESIZE);
  for (int N = 0; N < Header->e_phnum; ++N) {
    if (P[N].p_type != PT_LOAD)
      continue;
    if (P[N].p_filesz > P[N].p_memsz || P[N].p_offset > FileBytes ||
        P[N].p_filesz > FileBytes - P[N].p_offset ||
        P[N].p_vaddr > SIZE_MAX / 4 || P[N].p_memsz > SIZE_MAX / 4 ||
        (P[N].p_vaddr - P[N].p_offset) % Page)
      return -1;
    size_t End = P[N].p_vaddr + P[N].p_memsz;
    I->Bytes = End > I->Bytes ? End : I->Bytes;
  }
  if (!I->Bytes)
    return -1;
  char *Base = mmap(NULL, I->Bytes, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (Base == MAP_FAILED)
    return -1;
  I->Info.dlpi_addr = (ElfW(Addr))(uintptr_t)Base;
  for (int N = 0; N < Header->e_phnum; ++N) {
    if (P[N].p_type != PT_LOAD || !P[N].p_filesz)
      continue;
    uint64_t Skew = P[N].p_vaddr % Page;
    if (mmap(Base + (P[N].p_vaddr - Skew), P[N].p_filesz + Skew, PROT_READ,
             MAP_PRIVATE | MAP_FIXED, File,
             (off_t)(P[N].p_offset - Skew)) == MAP_FAILED) {
      munmap(Base, I->Bytes);
      return -1;
    }
  }
  return 0;
}

/// Sets \p I, or returns -1 for anything but a shared object of a machine that
/// is known. Release the program headers with free() and the image with munmap.
static int mapFile(const char *Path, struct Image *I) {
  int File = open(Path, O_RDONLY | O_CLOEXEC);
  if (File < 0)
    return -1;
  int Result = -1;
  ElfW(Ehdr) Header;
  ElfW(Phdr) *Segments = NULL;
  struct stat State;
  memset(I, 0, sizeof *I);
  // The C library's fstat is younger than glibc 2.28; the kernel fills the same
  // structure.
  if (syscall(SYS_fstat, File, &State) || !S_ISREG(State.st_mode) ||
      pread(File, &Header, sizeof Header, 0) != (ssize_t)sizeof Header ||
      memcmp(Header.e_ident, ELFMAG, SELFMAG) ||
      Header.e_ident[EI_CLASS] != ELFCLASS64 ||
      Header.e_ident[EI_DATA] != ELFDATA2LSB || Header.e_type != ET_DYN ||
      Header.e_phentsize != sizeof *Segments || !machineOf(Header.e_machine))
    goto Done;
  size_t Bytes = Header.e_phnum * sizeof *Segments;
  Segments = malloc(Bytes + 1);
  if (!Segments ||
      pread(File, Segments, Bytes, (off_t)Header.e_phoff) != (ssize_t)Bytes)
    goto Done;
  I->Info.dlpi_phdr = Segments;
  I->Info.dlpi_phnum = Header.e_phnum;
  I->Machine = Header.e_machine;
  Result = mapSegments(File, &Header, (size_t)State.st_size, I);
Done:
  if (Result)
    free(Segments);
  close(File);
  return Result;
}

long udfrt_find_in_file(const char *path, const char *const *symbols,
                        size_t symbol_count, struct udfrt_slot *slots,
                        size_t capacity, uint32_t *machine) {
  struct Image I;
  if (mapFile(path, &I))
    return -1;
  struct Search S = {
      .Machine = machineOf(I.Machine), .Slots = slots, .Capacity = capacity};
  *machine = I.Machine;
  if (namesMake(&S.Names, symbols, symbol_count, symbol_count)) {
    S.Found = -1;
  } else {
    scanObject(&S, &I.Info, 0);
    free(S.Names.buckets);
  }
  for (long N = 0; N < S.Found && (size_t)N < capacity; ++N)
    slots[N].address -= I.Info.dlpi_addr;
  munmap((void *)(uintptr_t)I.Info.dlpi_addr, I.Bytes);
  free((void *)(uintptr_t)I.Info.dlpi_phdr);
  return S.Found;
}

/// What a patched libtorch (patch.c) calls instead of a symbol, or 0. To a
/// session these are the stock functions.
static uint64_t patched(const char *name) {
  void *Handle = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!Handle)
    return 0;
  uint64_t (*Function)(const char *);
  *(void **)&Function = dlsym(Handle, "udfpatch_function");
  uint64_t Address = Function ? Function(name) : 0;
  dlclose(Handle);
  return Address;
}

uint64_t udfrt_resolve(const char *object, const char *name,
                       const char *version) {
  uint64_t Patched = patched(name);
  if (Patched)
    return Patched;
  void *Handle = dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
  if (!Handle)
    return 0;
  void *Address =
      *version ? dlvsym(Handle, name, version) : dlsym(Handle, name);
  dlclose(Handle);
  return (uint64_t)(uintptr_t)Address;
}

//===----------------------------------------------------------------------===//
// Exchanging slots
//===----------------------------------------------------------------------===//

/// Pages that the loader has write-protected, from one address to another.
struct Pages {
  uint64_t Slot, Start, End;
};

static int findPages(struct dl_phdr_info *Info, size_t Size, void *Data) {
  (void)Size;
  struct Pages *Found = Data;
  uint64_t Page = (uint64_t)sysconf(_SC_PAGESIZE);
  for (int I = 0; I < Info->dlpi_phnum; ++I) {
    const ElfW(Phdr) *P = &Info->dlpi_phdr[I];
    uint64_t Start = Info->dlpi_addr + P->p_vaddr, End = Start + P->p_memsz;
    if (P->p_type != PT_GNU_RELRO || Found->Slot < Start || Found->Slot >= End)
      continue;
    Found->Start = Start & ~(Page - 1);
    Found->End = End & ~(Page - 1);
    return 1;
  }
  return 0;
}

static int protect(const struct Pages *P, int Protection) {
  return P->End > P->Start && mprotect((void *)(uintptr_t)P->Start,
                                       P->End - P->Start, Protection)
             ? errno
             : 0;
}

int udfrt_exchange(const struct udfrt_slot *slots, size_t count,
                   const uint64_t *expected, const uint64_t *desired,
                   uint64_t *found) {
  int Result = 0;
  struct Pages Open = {0, 0, 0}; // of one object, for all of its slots in a row
  for (size_t I = 0; I < count; ++I) {
    // A slot is an aligned 8-byte word that other threads may be calling
    // through. With one atomic exchange, they see the old or the new function.
    uint64_t *Word = (uint64_t *)(uintptr_t)slots[I].address;
    if (slots[I].relro &&
        (slots[I].address < Open.Start || slots[I].address >= Open.End)) {
      int Error = protect(&Open, PROT_READ);
      Result = Error ? Error : Result;
      Open = (struct Pages){slots[I].address, 0, 0};
      dl_iterate_phdr(findPages, &Open);
      Error = protect(&Open, PROT_READ | PROT_WRITE);
      if (Error || Open.End == Open.Start) {
        found[I] = __atomic_load_n(Word, __ATOMIC_ACQUIRE);
        Result = Error ? Error : EFAULT;
        Open.End = Open.Start;
        continue;
      }
    }
    found[I] = expected[I];
    __atomic_compare_exchange_n(Word, &found[I], desired[I], 0,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  int Error = protect(&Open, PROT_READ);
  return Error ? Error : Result;
}

uint64_t udfrt_states(const char *paths, size_t count) {
  uint64_t Hash = 0xcbf29ce484222325u; // FNV-1a, by words
  for (size_t I = 0; I < count; ++I) {
    struct stat Found;
    uint64_t Words[6] = {1};
    if (!stat(paths, &Found)) {
      Words[0] = (uint64_t)Found.st_size;
      Words[1] = (uint64_t)Found.st_mtim.tv_sec;
      Words[2] = (uint64_t)Found.st_mtim.tv_nsec;
      Words[3] = (uint64_t)Found.st_ctim.tv_sec;
      Words[4] = (uint64_t)Found.st_ctim.tv_nsec;
      Words[5] = (uint64_t)Found.st_ino;
    }
    for (size_t J = 0; J < 6; ++J) {
      Hash = (Hash ^ Words[J]) * 0x100000001b3u;
      Hash ^= Hash >> 32;
    }
    paths += strlen(paths) + 1;
  }
  return Hash;
}

void udfrt_insist(const struct udfrt_python *python, void *step, int tries) {
  void *First[3] = {NULL, NULL, NULL};
  for (; tries > 0; --tries) {
    void *Result = python->call(step);
    if (Result) {
      python->release(Result);
      break;
    }
    void *Error[3];
    python->fetch(&Error[0], &Error[1], &Error[2]);
    int IsFirst = !First[0];
    for (size_t I = 0; I < 3; ++I) {
      if (IsFirst)
        First[I] = Error[I];
      else if (Error[I])
        python->release(Error[I]);
    }
  }
  if (First[0])
    python->restore(First[0], First[1], First[2]);
}

void udfrt_read(const struct udfrt_slot *slots, size_t count,
                uint64_t *values) {
  for (size_t I = 0; I < count; ++I)
    values[I] = __atomic_load_n((uint64_t *)(uintptr_t)slots[I].address,
                                __ATOMIC_ACQUIRE);
}
