// What the headers of newer GNU C++ libraries ask of a library that glibc 2.28's contemporaries do not have. Linked
// into each library of the package and visible in none, as libstdc++_nonshared.a of manylinux_2_28 is.

#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>

// glibc 2.32. "Not known to have one thread" makes reference counts atomic, which is right for any number of threads.
extern "C" {
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// glibc 2.30. Conditions wait by the clock of the system here: a wait may end early or late if somebody sets it.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr long second = 1'000'000'000;
  timespec now{};
  timespec by_system{};
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &by_system) != 0) {
    return EINVAL;
  }
  by_system.tv_sec += until->tv_sec - now.tv_sec;
  by_system.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (by_system.tv_nsec < 0) {
    by_system.tv_nsec += second;
    --by_system.tv_sec;
  } else if (by_system.tv_nsec >= second) {
    by_system.tv_nsec -= second;
    ++by_system.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &by_system);
}

// glibc 2.33: headers had it inline before. Where long has 64 bits, the structure is that of the kernel.
int fstat(int descriptor, struct stat* out) { return static_cast<int>(syscall(SYS_fstat, descriptor, out)); }

// glibc 2.38: the conversions of C23, which also read "0b". Nothing here is written in binary.
#define GCTX_CONVERSION(type, name)                              \
  type gctx_old_##name(const char*, char**, int) __asm__(#name); \
  type __isoc23_##name(const char* text, char** end, int base) { return gctx_old_##name(text, end, base); }
GCTX_CONVERSION(long, strtol)
GCTX_CONVERSION(unsigned long, strtoul)
GCTX_CONVERSION(long long, strtoll)
GCTX_CONVERSION(unsigned long long, strtoull)
#undef GCTX_CONVERSION
}

namespace std {

// GLIBCXX_3.4.29
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// GLIBCXX_3.4.30
void condition_variable::wait(unique_lock<mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

}  // namespace std
