// A driver in front of the software driver (SIMULATED names its library) that stops at the functions of the table in
// cuda_gctx/_cpp/driver/functions.inc. cc -shared -fPIC -I cuda_gctx/_cpp/driver front.c -o front.so -ldl -lpthread
//
// While it is armed, a call goes on only when front_go() was called for it, by a thread of Python that has got the name
// of the call from front_wait() and so has held the GIL meanwhile. A call that nobody lets go on is named by
// front_stuck() and goes on after WATCHDOG seconds.
// A function that FAIL names ("cuStreamSynchronize:4") answers that code instead, after waiting MS milliseconds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WATCHDOG 5

typedef long L;
typedef L (*Any)(L, L, L, L, L, L, L, L, L, L, L, L);

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;  // one call after the other
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const char* asked;  // the call that waits
static int is_armed, is_over;
static char stuck[4096];

void front_arm(int armed) { __atomic_store_n(&is_armed, armed, __ATOMIC_SEQ_CST); }

const char* front_wait(void) {
  pthread_mutex_lock(&mutex);
  while (!asked && !is_over) pthread_cond_wait(&changed, &mutex);
  const char* name = asked;
  pthread_mutex_unlock(&mutex);
  return name;
}

void front_go(void) {
  pthread_mutex_lock(&mutex);
  asked = NULL;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

void front_end(void) {
  pthread_mutex_lock(&mutex);
  is_over = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

const char* front_stuck(void) { return stuck; }
void front_forget(void) { stuck[0] = 0; }

static void stop_at(const char* name) {
  if (!__atomic_load_n(&is_armed, __ATOMIC_SEQ_CST) || !strcmp(name, "cuCtxPushCurrent") ||
      !strcmp(name, "cuCtxPopCurrent") || !strcmp(name, "cuCtxGetCurrent") || !strcmp(name, "cuCtxGetId") ||
      !strcmp(name, "cuCtxSetCurrent") || !strncmp(name, "cuGetError", 10)) {
    return;
  }
  pthread_mutex_lock(&turn);
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += WATCHDOG;
  pthread_mutex_lock(&mutex);
  asked = name;
  pthread_cond_broadcast(&changed);
  while (asked && !is_over) {
    if (pthread_cond_timedwait(&changed, &mutex, &end) != 0) {
      strncat(stuck, name, sizeof stuck - strlen(stuck) - 2);
      strcat(stuck, " ");
      asked = NULL;
    }
  }
  pthread_mutex_unlock(&mutex);
  pthread_mutex_unlock(&turn);
}

static int failure_of(const char* name) {
  const char* wanted = getenv("FAIL");
  const size_t length = strlen(name);
  if (!wanted || strncmp(wanted, name, length) != 0 || wanted[length] != ':') return 0;
  usleep(1000 * (unsigned)atoi(getenv("MS")));
  return atoi(wanted + length + 1);
}

// What any library with a slow exit handler does.
static void be_slow(void) { usleep(500000); }
void front_slow_exit(void) { atexit(be_slow); }

static void* library(void) {
  static void* opened;
  if (!opened) opened = dlopen(getenv("SIMULATED"), RTLD_NOW | RTLD_LOCAL);
  return opened;
}

#define GCTX_FUNCTION(name, symbol, since)                                    \
  static Any real_##name;                                                     \
  static L front_##name(L a, L b, L c, L d, L e, L f, L g, L h, L i, L j, L k, L l) { \
    stop_at(#name);                                                           \
    const int failure = failure_of(#name);                                    \
    return failure ? failure : real_##name(a, b, c, d, e, f, g, h, i, j, k, l); \
  }
#include "functions.inc"
#undef GCTX_FUNCTION

int cuDriverGetVersion(int* version) { return ((int (*)(int*))dlsym(library(), "cuDriverGetVersion"))(version); }

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* status) {
  const int answer = ((int (*)(const char*, void**, int, unsigned long long, int*))dlsym(
      library(), "cuGetProcAddress_v2"))(name, function, version, flags, status);
  if (answer != 0 || !function || !*function) return answer;
#define GCTX_FUNCTION(called, symbol, since) \
  if (!strcmp(name, symbol)) {               \
    real_##called = (Any)*function;          \
    *function = (void*)front_##called;       \
  }
#include "functions.inc"
  return answer;
}
