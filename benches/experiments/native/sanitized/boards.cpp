// SPDX-License-Identifier: Apache-2.0
// Switches the tables of boards under threads that call an operator.
//
//     boards ROUNDS
//
// Each target adds a number of its own, and its kernel holds that number on the
// heap: a target that is freed while a thread is inside is read after its end.

#include "board.h"

#include "kernel_of.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/ones.h>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr int Readers_ = 4, Numbers = 8;

struct Adding final : c10::OperatorKernel {
  explicit Adding(float Number) : Number(new float(Number)) {}
  Adding(const Adding &) = delete;
  Adding &operator=(const Adding &) = delete;
  ~Adding() override { delete Number; }
  Tensor operator()(const Tensor &X) {
    Tensor Y = at::empty_like(X);
    const auto *From = static_cast<const float *>(X.const_data_ptr());
    auto *To = static_cast<float *>(Y.mutable_data_ptr());
    for (int64_t I = 0; I < X.numel(); ++I)
      To[I] = From[I] + *Number;
    return Y;
  }
  // A smart pointer would be null for a moment before its memory is free: what
  // then comes too late would find no freed memory.
  const float *const Number;
};

Board &board() {
  const OperatorHandle Op = handleOf("aten::neg");
  const auto Key = c10::DispatchKey::CPU;
  static auto *Made =
      new Board{Op, Key, 0, udf::detail::kernelOf(Op, Key), std::nullopt};
  using Kernel = Switch<at::_ops::neg::schema>;
  Made->Registration.emplace(c10::Dispatcher::singleton().registerImpl(
      Op.operator_name(), Key,
      KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
          std::make_unique<Kernel>(*Made)),
      c10::impl::CppSignature::make<at::_ops::neg::schema>(), nullptr,
      "boards.cpp"));
  return *Made;
}

std::unique_ptr<Target> target(Board &B, float Number) {
  auto Made = std::make_unique<Target>(B);
  Made->Kernel = KernelFunction::makeFromUnboxedFunctor<false, Adding>(
      std::make_unique<Adding>(Number));
  return Made;
}

std::atomic<bool> Stop{false};
std::atomic<long> Calls{0}, Wrong{0};

/// So many calls there are for each table, at least.
constexpr long CallsOfRound = 20;

void call() {
  c10::InferenceMode Plain;
  const Tensor X = at::ones({4});
  while (!Stop.load()) {
    const Tensor Y = at::neg(X);
    const float Got = *static_cast<const float *>(Y.const_data_ptr());
    if (Got != -1 && !(Got >= 101 && Got < 101 + Numbers))
      ++Wrong;
    ++Calls;
  }
}

} // namespace

int main(int Count, char **Arguments) {
  const int Rounds = Count > 1 ? std::atoi(Arguments[1]) : 100;
  Board &B = board();
  std::vector<std::thread> Threads;
  for (int I = 0; I < Readers_; ++I)
    Threads.emplace_back(call);
  for (int Round = 0; Round < Rounds; ++Round) {
    Target *New =
        target(B, static_cast<float>(100 + Round % Numbers)).release();
    auto *Next = new Table;
    Next->At.push_back(New);
    Active.store(Next);
    // However busy the machine is, threads call while tables change.
    do
      std::this_thread::yield();
    while (Calls.load() < CallsOfRound * (Round + 1L));
    Active.store(nullptr);
    std::vector<Retired> Free;
    {
      std::lock_guard<std::mutex> Guard(Lock);
      retire(Next, New);
      Free = takeUnused();
    }
  }
  Stop = true;
  for (auto &T : Threads)
    T.join();
  std::printf("calls %ld\n", Calls.load());
  return Wrong.load() ? 1 : 0;
}
