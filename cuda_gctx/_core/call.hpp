// How Cython calls the core. A call works without the GIL, on handles that stay until it has ended, and what it is the
// last to hold is let go without the GIL too, so that no driver object is destroyed while all of Python waits. What it
// throws is caught where it was thrown: Python raises it with the GIL, after the ordinary end of the region without it.
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
#include "handles/captures.hpp"
#include "handles/closing.hpp"
#include "handles/current.hpp"
#include "handles/device.hpp"
#include "handles/given.hpp"
#include "handles/moved_graph.hpp"
#include "handles/probe.hpp"
#include "handles/sequence.hpp"
#include "handles/slot.hpp"
#include "handles/split_contexts.hpp"
#include "handles/stream.hpp"
#include "handles/switching.hpp"
#include "resources/descriptor.hpp"
#include "resources/outcome.hpp"

namespace gctx {

#ifdef Py_GIL_DISABLED
inline constexpr bool has_gil = false;
#else
inline constexpr bool has_gil = true;
#endif
template <typename Box>
using PlaceOfHandle = std::conditional_t<has_gil, LockedSlot<Box>, Slot<Box>>;

// What the slots of all that is made in a context have in common.
struct ChildSlot {
  virtual bool is_empty() const noexcept = 0;
  virtual ContextHandle context() = 0;  // null, and the Python exception is set, where there is none
  virtual bool drop() = 0;              // lets the handle go; whether that was a use of its box
};

// The place of a handle in an object of Python, which lets it go when the object goes.
template <typename Box>
class ObjectSlot final : public PlaceOfHandle<Box>, public ChildSlot {
 public:
  ~ObjectSlot() noexcept(false);
  bool is_empty() const noexcept override { return !this->borrow(); }
  ContextHandle context() override;
  bool drop() override;
};
template <typename Box>
using ObjectBorrowed = typename ObjectSlot<Box>::Borrowed;

// Drops a handle, whose box may be the last use of a driver object. Whether there was one.
template <typename Box>
bool drop(std::shared_ptr<Box> handle);

namespace calls {

// Makes the Python exception, as _core/errors.pyx does.
inline void raise(const std::exception_ptr& failure) {
  using Raise = int (*)(const std::exception_ptr&);
  void* const found = PyCapsule_Import("cuda_gctx._core.extension.raise_failure", 0);
  if (found != nullptr) {
    reinterpret_cast<Raise>(found)(failure);
  }
}

// The handler of `except +raise_error` in cpp.pxd, called inside a catch block.
inline int raise_in_flight() {
  raise(std::current_exception());
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
  std::exception_ptr failure;
  PyThreadState* const thread = PyEval_SaveThread();
  try {
    std::apply([&](auto&... each) { work(each.get()...); }, holds);
  } catch (...) {
    failure = std::current_exception();
  }
  std::apply([](auto&... each) { (each.let_go(), ...); }, holds);
  PyEval_RestoreThread(thread);
  if (failure) [[unlikely]] {
    raise(failure);
  }
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

// Drops a handle of an object that goes. Whether that can have been the last one: not if the slot of another object has
// it too.
template <typename Box>
bool drop_beside(std::shared_ptr<Box>& handle, ObjectSlot<Box>& slot) {
  if (slot.borrow().get() != handle.get()) [[unlikely]] {
    return drop(std::move(handle));
  }
  handle.reset();
  return false;
}

// Makes a handle that of a slot again.
template <typename Box>
void renew(std::shared_ptr<Box>& handle, ObjectSlot<Box>& slot) {
  if (slot.borrow().get() != handle.get()) [[unlikely]] {
    drop(std::exchange(handle, slot.get()));
  }
}

// Calls a function that asks whether a context is current.
template <auto function>
int call_after_blocks(ObjectSlot<ContextBox>& slot) {
  if (const auto box = slot.borrow()) {
    box.get()->state().take_what_is_left();
  }
  return call<function>(slot);
}

// Ends what the thread made current, in one step for all who hold the GIL.
inline void end_thread() {
  ThreadEntries& here = ThreadEntries::here();
  std::vector<ContextHandle> contexts = here.end();
  std::tuple<calls::Taken<std::vector<ContextHandle>>> holds(contexts);
  calls::work_without_gil([&](auto&&...) { std::exchange(here.failed, {}).note(); }, holds);
}

// Calls a function that makes a handle, and puts it into a slot. 1, or 0 if there is none, or -1.
template <auto function, typename Box, typename... Arguments>
int make(ObjectSlot<Box>& slot, Arguments&&... arguments) {
  calls::Holds<Arguments...> holds(arguments...);
  std::shared_ptr<Box> made;
  if (!calls::work_without_gil([&](auto&&... each) { made = std::invoke(function, each...); }, holds)) {
    return -1;
  }
  if (slot.was_filled()) {  // by another call of __init__
    drop(std::move(made));
    PyErr_Format(PyExc_RuntimeError, "this %s has been initialised already: make another object", Box::word);
    return -1;
  }
  if (!made) {
    return 0;
  }
  slot.put(std::move(made));
  return 1;
}

// The box of a slot, for what is done before the GIL is given up; null, and the Python exception is set, if the object
// has been closed.
template <typename Box>
ObjectBorrowed<Box> present(ObjectSlot<Box>& slot) {
  ObjectBorrowed<Box> box = slot.borrow();
  if (!box) [[unlikely]] {
    try {
      slot.fail_empty();
    } catch (...) {
      calls::raise(std::current_exception());
    }
  }
  return box;
}

// The same of an object that must still be of use: of a driver that may be called, and of a context that is open.
template <typename Box>
ObjectBorrowed<Box> live(ObjectSlot<Box>& slot) {
  ObjectBorrowed<Box> box = slot.borrow();
  try {
    if (box && !box.get()->asks_driver()) [[likely]] {
      box.get()->demand_live();
      return box;
    }
  } catch (...) {
    calls::raise(std::current_exception());
    return {};
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
    return box ? box.get()->context() : nullptr;
  }
  return nullptr;
}

}  // namespace gctx
