// What the headers of newer GNU C++ libraries ask of a library that glibc 2.28's contemporaries do not have. Linked into
// each library of the package and visible in none, as libstdc++_nonshared.a of manylinux_2_28 is.

#include <condition_variable>
#include <mutex>
#include <new>

#include <pthread.h>

// glibc 2.32. "Not known to have one thread" makes reference counts atomic, which is right for any number of threads.
extern "C" {
extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

namespace std {

// GLIBCXX_3.4.29
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// GLIBCXX_3.4.30
void condition_variable::wait(unique_lock<mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

}  // namespace std
