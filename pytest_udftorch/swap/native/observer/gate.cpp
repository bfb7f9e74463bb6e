//===- gate.cpp - Let a switch wait until no thread is in an operator -----===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// pytest_udftorch/swap/session/exclusive.py compiles this file against the
// headers of the installed torch, calls it, and gives the argument in plain
// words.
//
// at::RecordFunction calls start() and end() around each operator and each
// node of autograd. Every thread counts in a word of its own how deep in
// operators it is. A switch closes the gate and waits until the words of all
// other threads are zero. A thread that begins an operator first sets its
// word, then looks at the gate; a switch first closes the gate, then looks at
// the words. All four are sequentially consistent, so at least one of the two
// sees the other (Dekker's argument; the same shape as sleepable RCU).
//
// Operators that began before start() was registered are not counted. A thread
// is in doubt until one of these shows that it is in none of them:
//   - It finishes an operator that Python called directly: see isDirect.
//   - A signal handler in it finds no code of torch on its stack. This is how
//     Linux livepatch looks at tasks, from the inside.
//   - It is a service thread of torch, or one without signals, that sleeps.
// What begins on a thread without doubt begins after the registration.
//
//===----------------------------------------------------------------------===//

#include <Python.h>

#include "glibc.h"
#include "libstdcxx.h"

#include <ATen/record_function.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <linux/futex.h>
#include <memory>
#include <pthread.h>
#include <set>
#include <signal.h>
#include <string>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define GATE_EXPORT __attribute__((visibility("default")))

UDFTORCH_OLD(dladdr);

namespace at {
bool in_parallel_region(); // ATen/Parallel.h takes long to compile
} // namespace at

namespace {

using at::RecordFunction;

pid_t tid() { return static_cast<pid_t>(syscall(SYS_gettid)); }

uint64_t nowNs() {
  timespec T;
  clock_gettime(CLOCK_MONOTONIC, &T);
  return static_cast<uint64_t>(T.tv_sec) * 1000000000u +
         static_cast<uint64_t>(T.tv_nsec);
}

void sleepNs(uint64_t Ns) {
  timespec T = {static_cast<time_t>(Ns / 1000000000u),
                static_cast<long>(Ns % 1000000000u)};
  nanosleep(&T, nullptr);
}

//===----------------------------------------------------------------------===//
// Threads
//===----------------------------------------------------------------------===//

/// One thread; a cache line of its own. Never freed: a switch may be reading.
struct alignas(64) Reader {
  std::atomic<uint32_t> Depth{0}; ///< operators around the current place
  std::atomic<bool> IsFree{false};
  pid_t Thread = 0;
  uint32_t Known = 0;    ///< the registration for which there is no doubt
  bool Leaves = false;   ///< the end of this operator ends the doubt
  uint64_t NextLook = 0; ///< at the stack, while in doubt
  Reader *Next = nullptr;
};

std::atomic<Reader *> Readers{nullptr};
thread_local Reader *Mine = nullptr;

struct AtExit {
  ~AtExit() {
    if (Reader *R = Mine) {
      Mine = nullptr;
      R->Depth.store(0);
      R->IsFree.store(true);
    }
  }
};

Reader *attach() {
  static thread_local AtExit Leave;
  (void)Leave;
  Reader *R = Readers.load();
  for (; R; R = R->Next) {
    bool Free = true;
    if (R->IsFree.load() && R->IsFree.compare_exchange_strong(Free, false))
      break;
  }
  if (!R) {
    R = new Reader;
    Reader *Head = Readers.load();
    do
      R->Next = Head;
    while (!Readers.compare_exchange_weak(Head, R));
  }
  R->Thread = tid();
  R->Known = 0;
  R->Leaves = false;
  R->NextLook = 0;
  return Mine = R;
}

//===----------------------------------------------------------------------===//
// The gate
//===----------------------------------------------------------------------===//

std::atomic<uint32_t> Closed{0}; // the word that threads sleep on
std::atomic<pid_t> Closer{0};
// A thread that has waited this long at a closed gate passes it, and the switch
// fails: whatever a switch waits for, nothing stands still for ever.
std::atomic<uint64_t> PatienceNs{60000000000u};
std::atomic<uint64_t> Impatient{0}, Held{0};

void openGate() {
  Closed.store(0);
  Closer.store(0);
  syscall(SYS_futex, &Closed, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool waitUntilOpen() {
  const uint64_t End = nowNs() + PatienceNs.load();
  Held.fetch_add(1, std::memory_order_relaxed);
  // Most operators are called without the interpreter's lock. One that is not
  // must not keep it: operators written in Python need it to finish.
  PyThreadState *Python =
      Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  bool IsOpen;
  while (!(IsOpen = !Closed.load())) {
    const uint64_t Now = nowNs();
    if (Now >= End)
      break;
    const uint64_t Left = std::min<uint64_t>(End - Now, 100000000u);
    timespec Wait = {0, static_cast<long>(Left)};
    syscall(SYS_futex, &Closed, FUTEX_WAIT_PRIVATE, 1, &Wait, nullptr, 0);
  }
  if (Python)
    PyEval_RestoreThread(Python);
  return IsOpen;
}

//===----------------------------------------------------------------------===//
// What lies where
//===----------------------------------------------------------------------===//

enum class Kind { Unknown, Torch, TorchPython, System, Main, Other };

struct Text {
  uintptr_t Begin, End;
  Kind What;
};

bool startsWith(const char *Text, const char *Prefix) {
  return !strncmp(Text, Prefix, strlen(Prefix));
}

bool isTorch(const char *File) {
  return startsWith(File, "libtorch") || startsWith(File, "libc10");
}

bool needsTorch(const dl_phdr_info *Info) {
  const ElfW(Dyn) *First = nullptr;
  for (int I = 0; I < Info->dlpi_phnum; ++I)
    if (Info->dlpi_phdr[I].p_type == PT_DYNAMIC)
      First = reinterpret_cast<const ElfW(Dyn) *>(Info->dlpi_addr +
                                                  Info->dlpi_phdr[I].p_vaddr);
  if (!First)
    return false;
  const char *Strings = nullptr;
  for (auto *D = First; D->d_tag != DT_NULL; ++D)
    if (D->d_tag == DT_STRTAB) {
      ElfW(Addr) At = D->d_un.d_ptr;
      Strings = reinterpret_cast<const char *>(
          At < Info->dlpi_addr ? At + Info->dlpi_addr : At);
    }
  if (Strings)
    for (auto *D = First; D->d_tag != DT_NULL; ++D)
      if (D->d_tag == DT_NEEDED && isTorch(Strings + D->d_un.d_val))
        return true;
  return false;
}

int addTexts(dl_phdr_info *Info, size_t, void *Data) {
  auto &All = *static_cast<std::vector<Text> *>(Data);
  const char *Slash = strrchr(Info->dlpi_name, '/');
  const char *File = Slash ? Slash + 1 : Info->dlpi_name;
  Kind What = Kind::Other;
  if (All.empty()) // the program itself comes first
    What = Kind::Main;
  else if (startsWith(File, "libtorch_python"))
    What = Kind::TorchPython;
  else if (startsWith(File, "gate.so") || startsWith(File, "observer.so"))
    What = Kind::Other; // no operator is in one of them alone
  else if (isTorch(File) || needsTorch(Info))
    What = Kind::Torch;
  else if (startsWith(File, "libc.so") || startsWith(File, "libpthread") ||
           startsWith(File, "libstdc++") || startsWith(File, "linux-vdso"))
    What = Kind::System;
  for (int I = 0; I < Info->dlpi_phnum; ++I) {
    const ElfW(Phdr) &P = Info->dlpi_phdr[I];
    if (P.p_type == PT_LOAD && (P.p_flags & PF_X))
      All.push_back({Info->dlpi_addr + P.p_vaddr,
                     Info->dlpi_addr + P.p_vaddr + P.p_memsz, What});
  }
  return 0;
}

/// Held while the loader's list is read. The loader's own lock would stay
/// locked in a child that is forked meanwhile, so a fork waits for this one.
pthread_mutex_t Listing = PTHREAD_MUTEX_INITIALIZER;

/// The objects that are loaded now. A frame outside of all of them is unknown.
struct Map {
  Map() {
    pthread_mutex_lock(&Listing);
    dl_iterate_phdr(addTexts, &All);
    pthread_mutex_unlock(&Listing);
  }
  Kind find(const void *Place) const {
    const auto At = reinterpret_cast<uintptr_t>(Place);
    for (const Text &T : All)
      if (T.Begin <= At && At < T.End)
        return T.What;
    return Kind::Unknown;
  }
  std::vector<Text> All;
};

const char *nameOf(const void *Place, Dl_info *Info) {
  return dladdr(Place, Info) && Info->dli_sname ? Info->dli_sname : "";
}

/// An unwinder that is lost ends anywhere; a whole stack begins in the program
/// or in libc.
bool isWhole(const Map &Where, void *const *Frames, int Count) {
  while (Count && !Frames[Count - 1])
    --Count;
  if (!Count)
    return false;
  const Kind Root = Where.find(Frames[Count - 1]);
  return Root == Kind::Main || Root == Kind::System;
}

enum { MostFrames = 2048 };

//===----------------------------------------------------------------------===//
// Doubt
//===----------------------------------------------------------------------===//

/// A thread that was there at the registration.
struct Doubt {
  explicit Doubt(pid_t T) : Thread(T) {}
  std::atomic<pid_t> Thread; ///< 0 once there is no doubt
  std::vector<void *> Seen;  ///< where it slept when it was looked at
  uint64_t SeenAt = 0, NextLook = 0, Pause = 1000000;
  std::string Switches;
};

/// Those of one registration. Never freed: threads may be reading.
struct Doubts {
  uint32_t Registration;
  std::vector<std::unique_ptr<Doubt>> All;
};

std::atomic<uint32_t> Registration{0};
std::atomic<Doubts *> Current{nullptr};

Doubt *doubtOf(pid_t Thread, const Doubts *All) {
  for (const auto &D : All->All)
    if (D->Thread.load() == Thread)
      return D.get();
  return nullptr;
}

/// Whether Python calls the operator that begins here, through the generated
/// bindings, and nothing of torch lies farther out. Then no operator lies
/// around this one, unless it left the stack by a tail call. One that did has
/// nothing to do after this operator. So at the end of this one the thread is
/// in no operator at all.
bool isDirect() {
  std::vector<void *> Frames(MostFrames);
  const int Count = backtrace(Frames.data(), MostFrames);
  const Map Where;
  Dl_info Info;
  int At = 0;
  for (; At < Count; ++At)
    if (startsWith(nameOf(Frames[At], &Info), "_ZN2at4_ops"))
      break;
  bool FromPython = false;
  for (++At; At < Count && Where.find(Frames[At]) == Kind::TorchPython; ++At)
    FromPython = true;
  if (!FromPython || !isWhole(Where, Frames.data(), Count))
    return false;
  return std::none_of(&Frames[At], &Frames[Count], [&](void *F) {
    const Kind K = Where.find(F);
    return K == Kind::Torch || K == Kind::TorchPython || K == Kind::Unknown;
  });
}

void settle(Reader *R) {
  const uint32_t Now = Registration.load();
  Doubts *All = Current.load();
  if (!All || All->Registration != Now)
    return; // it is being made
  if (!doubtOf(R->Thread, All)) {
    R->Known = Now;
    return;
  }
  // A look takes a millisecond, as the names of libtorch are many.
  const uint64_t Begin = nowNs();
  if (Begin < R->NextLook)
    return;
  R->Leaves = isDirect();
  const uint64_t End = nowNs();
  R->NextLook = End + 2 * (End - Begin);
}

__attribute__((noinline)) void startSlowly(Reader *R) {
  if (R->Known != Registration.load(std::memory_order_relaxed)) {
    settle(R);
    if (R->Known != Registration.load())
      return; // counted, but never held
  }
  while (Closed.load()) {
    // A worker of a parallel region belongs to an operator that has begun.
    if (Closer.load() == R->Thread || at::in_parallel_region())
      return;
    R->Depth.store(0);
    if (!waitUntilOpen()) {
      Impatient.fetch_add(1);
      R->Depth.store(1);
      return;
    }
    R->Depth.store(1);
  }
}

std::unique_ptr<at::ObserverContext> start(const RecordFunction &) {
  Reader *R = Mine ? Mine : attach();
  const uint32_t Depth = R->Depth.load(std::memory_order_relaxed);
  if (Depth) {
    R->Depth.store(Depth + 1, std::memory_order_relaxed);
    return nullptr;
  }
  R->Depth.store(1);
  if (Closed.load() || R->Known != Registration.load(std::memory_order_relaxed))
    startSlowly(R);
  return nullptr;
}

void end(const RecordFunction &, at::ObserverContext *) {
  Reader *R = Mine;
  const uint32_t Depth = R ? R->Depth.load(std::memory_order_relaxed) : 0;
  if (!Depth)
    return;
  R->Depth.store(Depth - 1, std::memory_order_release);
  if (Depth == 1 && R->Leaves) {
    R->Leaves = false;
    Doubts *All = Current.load();
    if (All && All->Registration == Registration.load())
      if (Doubt *D = doubtOf(R->Thread, All))
        D->Thread.store(0);
  }
}

//===----------------------------------------------------------------------===//
// Looking at a thread
//===----------------------------------------------------------------------===//

struct Request {
  std::atomic<int> State{0}; ///< 1: being written, 2: done
  int Count = 0;
  void *From = nullptr; ///< where the thread was interrupted
  void *Frames[MostFrames];
};

std::atomic<Request *> Asked{nullptr};
int Signal = 0;

void answer(int, siginfo_t *Info, void *Context) {
  const int Error = errno;
  Request *R = Asked.load();
  int New = 0;
  if (R && Info->si_code == SI_QUEUE && Info->si_value.sival_ptr == R &&
      R->State.compare_exchange_strong(New, 1)) {
    auto *C = static_cast<ucontext_t *>(Context);
    R->From = reinterpret_cast<void *>(C->uc_mcontext.gregs[REG_RIP]);
    R->Count = backtrace(R->Frames, MostFrames);
    R->State.store(2);
  }
  errno = Error;
}

/// Takes a real-time signal that nobody uses. The handler stays: a signal that
/// arrives late would end the process without it.
bool haveSignal() {
  if (Signal)
    return true;
  void *Warm[4]; // the unwinder is loaded here, not in a handler
  backtrace(Warm, 4);
  for (int S = SIGRTMAX - 1; S > SIGRTMIN; --S) {
    struct sigaction Old;
    if (sigaction(S, nullptr, &Old) || Old.sa_handler != SIG_DFL)
      continue;
    struct sigaction New = {};
    New.sa_sigaction = answer;
    New.sa_flags = SA_SIGINFO | SA_RESTART;
    sigfillset(&New.sa_mask);
    if (!sigaction(S, &New, nullptr)) {
      Signal = S;
      return true;
    }
  }
  return false;
}

std::string readTask(pid_t Thread, const char *File) {
  char Path[64], Buffer[4096];
  snprintf(Path, sizeof Path, "/proc/self/task/%d/%s", Thread, File);
  std::string All;
  if (FILE *F = fopen(Path, "re")) {
    All.assign(Buffer, fread(Buffer, 1, sizeof Buffer, F));
    fclose(F);
  }
  return All;
}

std::string field(const std::string &Status, const char *Name) {
  const size_t At = Status.find(Name);
  if (At == std::string::npos)
    return "";
  return Status.substr(At + strlen(Name),
                       Status.find('\n', At) - At - strlen(Name));
}

/// Asks a thread for its stack. Null if it does not answer soon.
std::unique_ptr<Request> stackOf(pid_t Thread) {
  auto R = std::make_unique<Request>();
  Asked.store(R.get());
  siginfo_t Info = {};
  Info.si_code = SI_QUEUE;
  Info.si_pid = getpid();
  Info.si_uid = getuid();
  Info.si_value.sival_ptr = R.get();
  bool Done = false;
  if (!syscall(SYS_rt_tgsigqueueinfo, getpid(), Thread, Signal, &Info)) {
    const uint64_t End = nowNs() + 20000000u;
    while (!(Done = R->State.load() == 2) && nowNs() < End)
      sleepNs(20000);
    int New = 0;
    if (!Done && !R->State.compare_exchange_strong(New, 3)) {
      while (R->State.load() != 2)
        sleepNs(20000);
      Done = true;
    }
  }
  Asked.store(nullptr);
  if (Done)
    return R;
  // A handler may be about to look at it.
  (void)R.release();
  return nullptr;
}

/// Whether the stack shows a thread outside of all operators.
bool isOutside(const Map &Where, const Request &R) {
  if (!isWhole(Where, R.Frames, R.Count))
    return false;
  void *const *End = R.Frames + R.Count;
  auto *First = std::find(R.Frames, End, R.From);
  return First != End && std::none_of(First, End, [&](void *F) {
           const Kind K = Where.find(F);
           return K == Kind::Torch || K == Kind::TorchPython ||
                  K == Kind::Unknown;
         });
}

/// Whether the stack may be that of a thread of torch's own that waits for
/// work: nothing but torch and libc, and no function of namespace at.
bool isService(const Map &Where, const Request &R) {
  if (!isWhole(Where, R.Frames, R.Count))
    return false;
  void *const *End = R.Frames + R.Count;
  auto *First = std::find(R.Frames, End, R.From);
  return First != End && Where.find(*First) == Kind::System &&
         std::none_of(First, End, [&](void *F) {
           Dl_info Info;
           const Kind K = Where.find(F);
           return K == Kind::Main || K == Kind::Other || K == Kind::Unknown ||
                  (K != Kind::System && startsWith(nameOf(F, &Info), "_ZN2at"));
         });
}

/// Looks at a thread; true if there is no doubt any more.
bool look(Doubt &D) {
  const pid_t Thread = D.Thread.load();
  const std::string Status = readTask(Thread, "status");
  if (Status.empty())
    return true; // it has ended
  const uint64_t Now = nowNs();
  const bool Sleeps = field(Status, "State:").find('S') != std::string::npos;
  const uint64_t Blocked = strtoull(field(Status, "SigBlk:").c_str(), 0, 16);
  const bool Again = Now - D.SeenAt >= 20000000u;
  if (Blocked >> (Signal - 1) & 1) {
    const std::string Switches = field(Status, "voluntary_ctxt_switches:") +
                                 field(Status, "nonvoluntary_ctxt_switches:");
    const bool Same = Sleeps && D.Switches == Switches;
    if (Same)
      return Again;
    D.Switches = Sleeps ? Switches : "";
    D.SeenAt = Now;
    return false;
  }
  const auto R = stackOf(Thread);
  if (!R)
    return false;
  const Map Where;
  if (isOutside(Where, *R))
    return true;
  if (!Sleeps || !isService(Where, *R)) {
    D.Seen.clear();
    return false;
  }
  std::vector<void *> Seen(R->Frames, R->Frames + R->Count);
  if (Seen == D.Seen)
    return Again;
  D.Seen = std::move(Seen);
  D.SeenAt = Now;
  return false;
}

/// Whether a thread other than \p Me is in an operator, or may be.
std::vector<pid_t> inTheWay(pid_t Me, bool LookAtAll) {
  std::vector<pid_t> Found;
  if (Doubts *All = Current.load())
    for (const auto &D : All->All) {
      const pid_t Thread = D->Thread.load();
      if (!Thread || Thread == Me)
        continue;
      if (LookAtAll && nowNs() >= D->NextLook) {
        if (look(*D)) {
          pid_t Expected = Thread;
          D->Thread.compare_exchange_strong(Expected, 0);
          continue;
        }
        D->Pause = std::min<uint64_t>(2 * D->Pause, 50000000u);
        D->NextLook = nowNs() + D->Pause;
      }
      Found.push_back(Thread);
    }
  for (Reader *R = Readers.load(); R; R = R->Next)
    if (R != Mine && R->Depth.load())
      Found.push_back(R->Thread);
  return Found;
}

std::set<pid_t> threads() {
  std::set<pid_t> Found;
  // A listing can miss a thread while another one ends.
  for (int I = 0; I < 3; ++I)
    if (DIR *D = opendir("/proc/self/task")) {
      while (dirent *E = readdir(D))
        if (const int T = atoi(E->d_name))
          Found.insert(T);
      closedir(D);
    }
  return Found;
}

at::CallbackHandle Callback = at::INVALID_CALLBACK_HANDLE;

void beforeFork() { pthread_mutex_lock(&Listing); }
void afterForkInParent() { pthread_mutex_unlock(&Listing); }

/// Only the forking thread lives on in the child.
void afterFork() {
  pthread_mutex_unlock(&Listing);
  for (Reader *R = Readers.load(); R; R = R->Next)
    if (R != Mine) {
      R->Depth.store(0);
      R->IsFree.store(true);
    }
  Doubts *All = Current.load();
  const pid_t Before = Mine ? Mine->Thread : 0;
  if (All)
    for (const auto &D : All->All)
      D->Thread.store(Before && D->Thread.load() == Before ? tid() : 0);
  if (Mine)
    Mine->Thread = tid();
  Asked.store(nullptr);
  Closed.store(0);
  Closer.store(0);
}

} // namespace

/// Begins to count. Returns 0, -1 if torch refuses, or -2 if no signal is free.
extern "C" GATE_EXPORT int udfgate_start() try {
  static const bool Forks =
      !pthread_atfork(beforeFork, afterForkInParent, afterFork);
  (void)Forks;
  if (!haveSignal())
    return -2;
  const uint32_t Next = Registration.load() + 1;
  Registration.store(Next);
  if (Callback == at::INVALID_CALLBACK_HANDLE) // a forked child has it already
    Callback = at::addGlobalCallback(
        at::RecordFunctionCallback(start, end)
            .scopes({at::RecordScope::FUNCTION,
                     at::RecordScope::BACKWARD_FUNCTION}));
  auto All = std::make_unique<Doubts>();
  All->Registration = Next;
  auto Here = std::make_unique<Request>();
  Here->Count = backtrace(Here->Frames, MostFrames);
  Here->From = Here->Frames[0];
  const pid_t Known = isOutside(Map(), *Here) ? tid() : 0;
  for (pid_t T : threads())
    if (T != Known)
      All->All.push_back(std::make_unique<Doubt>(T));
  Current.store(All.release());
  return 0;
} catch (...) {
  return -1;
}

extern "C" GATE_EXPORT void udfgate_stop() {
  if (Callback != at::INVALID_CALLBACK_HANDLE)
    at::removeCallback(Callback);
  Callback = at::INVALID_CALLBACK_HANDLE;
}

/// Closes the gate and waits until no other thread is in an operator, for at
/// most \p Ms milliseconds. Returns 0 if none is, or else 1. Either way the
/// gate stays closed until this thread opens it. The caller does not hold the
/// interpreter's lock.
extern "C" GATE_EXPORT int udfgate_close(unsigned Ms) {
  const pid_t Me = tid();
  const uint64_t End = nowNs() + Ms * 1000000ull;
  pid_t Nobody = 0;
  while (!Closer.compare_exchange_strong(Nobody, Me) && Nobody != Me) {
    if (nowNs() >= End)
      return 1;
    Nobody = 0;
    sleepNs(100000);
  }
  Closed.store(1);
  for (uint64_t Pause = 5000;; Pause = std::min<uint64_t>(2 * Pause, 500000u)) {
    if (inTheWay(Me, true).empty())
      return 0;
    if (nowNs() >= End)
      return 1;
    sleepNs(Pause);
  }
}

/// Opens the gate, if this thread has closed it. Returns whether it had.
extern "C" GATE_EXPORT int udfgate_open() {
  if (Closer.load() != tid())
    return 0;
  openGate();
  return 1;
}

/// How many operators have passed a closed gate so far.
extern "C" GATE_EXPORT uint64_t udfgate_passed() { return Impatient.load(); }

/// Writes the threads that are in the way, at most \p Count; returns how many.
extern "C" GATE_EXPORT size_t udfgate_in_the_way(int32_t *Threads,
                                                 size_t Count) {
  const auto Found = inTheWay(tid(), false);
  std::copy_n(Found.begin(), std::min(Count, Found.size()), Threads);
  return Found.size();
}

/// Sets for how many milliseconds a thread waits at a closed gate.
extern "C" GATE_EXPORT void udfgate_patience(unsigned Ms) {
  PatienceNs.store(Ms * 1000000ull);
}

/// How many operators had to wait so far.
extern "C" GATE_EXPORT uint64_t udfgate_held() { return Held.load(); }

/// Releases a threading.RLock for a while, however often it is held. Python
/// runs signal handlers between any two lines of its own, but not in here, so
/// the lock is held again on return. The caller holds the interpreter's lock.
extern "C" GATE_EXPORT void udfgate_pause(PyObject *Lock, unsigned Ms) {
  PyObject *State = PyObject_CallMethod(Lock, "_release_save", nullptr);
  if (!State)
    return;
  Py_BEGIN_ALLOW_THREADS;
  sleepNs(Ms * 1000000ull);
  Py_END_ALLOW_THREADS;
  // Functions, not the macros: one gate serves every Python, and how Python
  // counts references differs between them.
  Py_DecRef(PyObject_CallMethod(Lock, "_acquire_restore", "(O)", State));
  Py_DecRef(State);
}
