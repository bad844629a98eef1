#!/bin/sh
# Runs a program that loads code which was built with sanitizers: sanitized.sh address,undefined|thread PROGRAM...
# The interpreter has none itself, so that their libraries have to be there before it allocates anything.
case $1 in
  thread) libraries=tsan ;;
  *) libraries='asan ubsan' ;;
esac
shift
LD_PRELOAD=$(for one in $libraries; do c++ -print-file-name=lib$one.so; done | tr '\n' ' ')
export LD_PRELOAD PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# The library of the thread sanitizer needs more space of the linker than there is next to an auditor (LD_AUDIT).
export GLIBC_TUNABLES=glibc.rtld.optional_static_tls=1048576
# A child of several threads goes on after a fork, as the tests of forks want it.
export TSAN_OPTIONS="die_after_fork=0 exitcode=66 suppressions=$(cd "$(dirname "$0")" && pwd)/sanitized.supp $TSAN_OPTIONS"
exec "$@"
