#!/bin/sh
# Runs a command next to BUSY (12) processes that each want a core, and ends with its exit code.
#
#   tests/under_load.sh COMMAND [ARGUMENT...]
#
# With "taskset -c 0,1" before it, the busy processes share these two cores with the command.
[ $# -gt 0 ] || { sed -n '2,/^[^#]/{/^[^#]/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
runner=$$
for _ in $(seq "${BUSY:-12}"); do
  # They end with this script, also where it is killed.
  (while kill -0 $runner 2>/dev/null; do :; done) &
done
"$@"
