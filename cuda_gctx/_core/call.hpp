// How Cython calls the core. A call works without the GIL, on handles that stay until it has ended, and what it is the
// last to hold is let go without the GIL too, so that no driver object is destroyed while all of Python waits. What it
// throws becomes a value where it was thrown: Python raises it with the GIL, after the ordinary end of the region.
// Nothing is in flight while the interpreter gives the GIL back, because a thread that comes too late, at exit, ends
// right there: CPython unwinds its stack. So no function from which a call is made may be noexcept, as destructors are
// by themselves: that would end the process.
#pragma once

#include <Python.h>

#include <exception>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "driver/error.hpp"
#include "driver/locate.hpp"
#include "handles/blocks.hpp"
#include "handles/captures.hpp"
#include "handles/closing.hpp"
#include "handles/context_pool.hpp"
#include "handles/device.hpp"
#include "handles/moved_graph.hpp"
#include "handles/opening.hpp"
#include "handles/probe.hpp"
#include "handles/sequence.hpp"
#include "handles/slot.hpp"
#include "handles/stream.hpp"
#include "handles/switching.hpp"
#include "resources/descriptor.hpp"
#include "resources/outcome.hpp"

namespace gctx {

// What the slots of all that is made in a context have in common.
struct ChildSlot {
  virtual bool is_empty() const noexcept = 0;
  virtual ContextHandle context() = 0;  // null, and the Python exception is set, where there is none
  virtual bool drop() = 0;              // lets the handle go; whether that was a use of its box
};

// The place of a handle in an object of Python, which lets it go when the object goes.
template <typename Box>
class ObjectSlot final : public Slot<Box>, public ChildSlot {
 public:
  ~ObjectSlot() noexcept(false);
  bool is_empty() const noexcept override { return !this->get(); }
  ContextHandle context() override;
  bool drop() override;
};
template <typename Box>
using ObjectBorrowed = std::shared_ptr<Box>;

// Drops a handle, whose box may be the last use of a driver object. Whether there was one.
template <typename Box>
bool drop(std::shared_ptr<Box> handle);

namespace calls {

// An exception of the core as a value.
struct Failure {
  std::unique_ptr<Error> error;
  std::unique_ptr<SplitFailure> split;  // if it is one, in place of the error

  explicit operator bool() const noexcept { return error || split; }
  template <typename Work>
  static Failure of(Work&& work) {
    try {
      work();
      return {};
    } catch (const SplitFailure& split) {
      return {nullptr, std::make_unique<SplitFailure>(split)};
    } catch (...) {
      return {caught_error(), nullptr};
    }
  }
};

// Makes the Python exception, as _core/errors.pyx does.
inline void raise(const Failure& failure) {
  using Raise = int (*)(const Error*, const SplitFailure*);
  void* const found = PyCapsule_Import("cuda_gctx._core.extension.raise_failure", 0);
  if (found != nullptr) {
    reinterpret_cast<Raise>(found)(failure.split ? failure.split.get() : failure.error.get(), failure.split.get());
  }
}

// The handler of `except +raise_error` in cpp.pxd, called inside a catch block.
inline int raise_in_flight() {
  raise(Failure::of([] { throw; }));
  return -1;
}

// Warns of what failed in destructors, as _core/errors.pyx does. Not while the interpreter takes its modules apart.
inline void report_failures() {
  if (!has_failure()) [[likely]] {
    return;
  }
  PyObject *kind, *error, *trace;
  PyErr_Fetch(&kind, &error, &trace);
  if (void* const found = PyCapsule_Import("cuda_gctx._core.extension._report", 0)) {
    reinterpret_cast<void (*)()>(found)();
  }
  PyErr_Restore(kind, error, trace);
}

// What a call works on: the handle in a slot; handles that the caller gives away; and what the caller keeps. let_go()
// is called without the GIL, and the destructor with it.
template <typename Box>
class Held {
 public:
  explicit Held(ObjectSlot<Box>& slot) noexcept : slot_(slot), box_(slot.begin_call()) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() noexcept(false) {
    if (std::shared_ptr<Box> last = box_ != nullptr ? slot_.end_call() : nullptr) [[unlikely]] {
      drop(std::move(last));
    }
  }
  const std::shared_ptr<Box>& get() const {
    if (box_ == nullptr) [[unlikely]] {
      slot_.fail_empty();
    }
    return *box_;
  }
  void let_go() noexcept {}

 private:
  ObjectSlot<Box>& slot_;
  const std::shared_ptr<Box>* const box_;
};
template <typename Given>
class Taken {  // a reference: what the caller keeps
 public:
  explicit Taken(std::remove_reference_t<Given>& given) noexcept : given_(static_cast<Given&&>(given)) {}
  Given& get() noexcept { return given_; }
  void let_go() noexcept {
    if constexpr (!std::is_reference_v<Given>) {
      given_ = Given();
    }
  }

 private:
  Given given_;
};

template <typename Box>
Held<Box> holder_of(ObjectSlot<Box>& slot);
template <typename Box>
  requires(!std::is_const_v<Box>)
Taken<std::vector<std::shared_ptr<Box>>> holder_of(std::vector<std::shared_ptr<Box>>& handles);
template <typename Given>
Taken<std::remove_reference_t<Given>&> holder_of(Given&& given);

// Calls without the GIL; true unless it failed, and then the Python exception is set.
template <typename Work, typename Holds>
bool work_without_gil(Work&& work, Holds& holds) {
  PyThreadState* const thread = PyEval_SaveThread();
  const Failure failure = Failure::of([&] { std::apply([&](auto&... each) { work(each.get()...); }, holds); });
  std::apply([](auto&... each) { (each.let_go(), ...); }, holds);
  PyEval_RestoreThread(thread);
  if (failure) [[unlikely]] {
    raise(failure);
  }
  report_failures();
  return !failure;
}

template <typename... Arguments>
using Holds = std::tuple<decltype(holder_of(std::declval<Arguments&>()))...>;

}  // namespace calls

// Calls a function of the core. Its result, as a number if it is none or a truth value, and as a pointer if it is a
// reference; after a failure -1, or what has no value.
template <auto function, typename... Arguments>
auto call(Arguments&&... arguments) {
  calls::Holds<Arguments...> holds(arguments...);
  const auto run = [&](auto&&... each) -> decltype(auto) { return std::invoke(function, each...); };
  using Result = decltype(std::apply([&](auto&... each) -> decltype(auto) { return run(each.get()...); }, holds));
  if constexpr (std::is_void_v<Result>) {
    return calls::work_without_gil(run, holds) ? 0 : -1;
  } else if constexpr (std::is_same_v<Result, bool>) {
    bool answer = false;
    return calls::work_without_gil([&](auto&&... each) { answer = run(each...); }, holds) ? int{answer} : -1;
  } else if constexpr (std::is_lvalue_reference_v<Result>) {
    std::remove_reference_t<Result>* answer = nullptr;
    calls::work_without_gil([&](auto&&... each) { answer = &run(each...); }, holds);
    return answer;
  } else {
    Result answer{};
    calls::work_without_gil([&](auto&&... each) { answer = run(each...); }, holds);
    return answer;
  }
}

template <typename Box>
bool drop(std::shared_ptr<Box> handle) {
  std::tuple<calls::Taken<std::shared_ptr<Box>>> holds(handle);
  return std::get<0>(holds).get() && calls::work_without_gil([](auto&&...) {}, holds);
}
template <typename Box>
bool ObjectSlot<Box>::drop() {
  return gctx::drop(this->take());
}
template <typename Box>
ObjectSlot<Box>::~ObjectSlot() noexcept(false) {
  if (drop()) {
    calls::report_failures();
  }
}

// Calls a function that makes a handle, and puts it into a slot. 1, or 0 if there is none, or -1.
template <auto function, typename Box, typename... Arguments>
int make(ObjectSlot<Box>& slot, Arguments&&... arguments) {
  calls::Holds<Arguments...> holds(arguments...);
  std::shared_ptr<Box> made;
  if (!calls::work_without_gil([&](auto&&... each) { made = std::invoke(function, each...); }, holds)) {
    return -1;
  }
  if (!made) {
    return 0;
  }
  if (slot.was_filled() || !slot.put(made)) {  // by another call of __init__
    drop(std::move(made));
    PyErr_Format(PyExc_RuntimeError, "this %s has been initialised already: make another object", Box::word);
    return -1;
  }
  return 1;
}

// The box of a slot, for what is done before the GIL is given up; null, and the Python exception is set, if the object
// has been closed.
template <typename Box>
ObjectBorrowed<Box> present(ObjectSlot<Box>& slot) {
  ObjectBorrowed<Box> box = slot.get();
  if (!box) [[unlikely]] {
    calls::raise(calls::Failure::of([&] { slot.fail_empty(); }));
  }
  return box;
}

// The same of an object that must still be of use: of a driver that may be called, and of a context that is open.
template <typename Box>
ObjectBorrowed<Box> live(ObjectSlot<Box>& slot) {
  ObjectBorrowed<Box> box = slot.get();
  if (box && !box->asks_driver()) [[likely]] {
    const calls::Failure failure = calls::Failure::of([&] { box->demand_live(); });
    if (failure) [[unlikely]] {
      calls::raise(failure);
      return {};
    }
    return box;
  }
  if (call<&Box::demand_live>(slot) != 0) {
    return {};
  }
  return present(slot);
}

template <typename Box>
ContextHandle ObjectSlot<Box>::context() {
  if constexpr (std::is_base_of_v<InContext, Box>) {
    const ObjectBorrowed<Box> box = live(*this);
    return box ? box->context() : nullptr;
  }
  return nullptr;
}

// Sets texts: the C++ code makes the string in the call, which is guarded.
inline void name_context(NewContext& context, const char* name) { context.name = name; }
inline void advise(Opening::Terms& terms, const char* advice) { terms.advice = advice; }
inline void name_use(Switching::NewUse& use, const char* part) { use.part = part; }

}  // namespace gctx
