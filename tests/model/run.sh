#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the shared-memory protocol (shm.pml) with SPIN: the rules hold in every order of events within the bounds named
# below, and with one rule taken out each time they do not. Keeps its work in build-model/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$here/../../build-model
rm -rf "$work"
mkdir -p "$work"
cd "$work"
cp "$here/shm.pml" .
held=0 broken=0

# search SETTING...: all states into `found`, which also holds what stopped a search before its end
search() {
  rm -f pan pan.* ./*.trail
  # shellcheck disable=SC2046
  spin $(printf -- '-D%s ' "$@") -a shm.pml > spin.log 2>&1 || { cat spin.log >&2; exit 1; }
  "${CC:-gcc}" -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=3500 -o pan pan.c
  (ulimit -t 600 && ./pan -m10000) > found 2>&1 || true  # of its own time: others may have the cores
  states=$(awk '/states, stored/ { print $1 }' found)
}

failed() {
  echo "model: $1" >&2
  cat found >&2
  exit 1
}

# holds NAME SETTING...: every state was seen, and none is bad
holds() {
  name=$1
  shift
  echo "== holds: $name [$*]"
  search "$@"
  if [ -e shm.pml.trail ]; then
    # shellcheck disable=SC2046
    spin $(printf -- '-D%s ' "$@") -t -p -g shm.pml 2>&1 | tail -80 >&2
    failed "$name: a rule does not hold; above are the last steps to it"
  fi
  grep -q 'errors: 0$' found || failed "$name: no verdict"
  if grep -qE 'Search not completed|max search depth too small' found; then failed "$name: the search did not end"; fi
  echo "   $states states"
  held=$((held + 1))
}

# breaks NAME REASON SETTING...: must fail, and for this reason
breaks() {
  name=$1 reason=$2
  shift 2
  echo "== must fail: $name [$*]"
  search "$@"
  [ -e shm.pml.trail ] || failed "$name: does not fail, so the model cannot see this"
  grep '^pan:1:' found | grep -qF "$reason" || failed "$name: fails for another reason than \"$reason\""
  echo "   $(sed -n 's/^pan:1: //p' found)"
  broken=$((broken + 1))
}

stuck="invalid end state"
result="cell["
stale="written[chosen]"
false_error="gave_up"

two="W=2 R=2 CALLS=3"
breaks "a slot is written without a look at its readers" "$false_error" $two S=0 STEPS=0 TIMEOUTS=1 DEATHS=0 WITHOUT_GUARD
breaks "one rank's mask does not count" "$result" $two S=1 STEPS=0 TIMEOUTS=0 DEATHS=0 WITHOUT_MASK
breaks "the bit is set while the result is held" "$result" $two S=1 STEPS=0 TIMEOUTS=0 DEATHS=0 BIT_TOO_EARLY
breaks "released without cleaning" "$stale" $two S=1 STEPS=0 TIMEOUTS=0 DEATHS=0 WITHOUT_CLEAN
breaks "written to after leaving early" "$result" $two S=1 STEPS=0 TIMEOUTS=1 DEATHS=0 LATE_WRITE
breaks "a staging buffer is written unread" "stage[" $two S=0 STEPS=3 TIMEOUTS=0 DEATHS=0 WITHOUT_CONSUMED
breaks "progress is not read again once a peer has left" "$false_error" \
  $two S=1 STEPS=0 TIMEOUTS=0 DEATHS=0 WITHOUT_REREAD
breaks "a peer that ended after this call counts as lost" "$false_error" \
  $two S=1 STEPS=0 TIMEOUTS=0 DEATHS=0 WITHOUT_DONE
breaks "a peer that was done before the others counts as lost" "$false_error" \
  W=3 R=2 CALLS=1 S=0 STEPS=2 TIMEOUTS=0 DEATHS=0 SCATTER WITHOUT_DONE
breaks "a frame is awaited from a peer that left without posting" "$stuck" \
  $two S=0 STEPS=0 TIMEOUTS=2 DEATHS=0 WITHOUT_LEAVERS
breaks "a reader is awaited that left the call" "$stuck" \
  $two S=0 STEPS=3 TIMEOUTS=1 DEATHS=0 WITHOUT_LEAVERS_STAGED
breaks "no second look once registered as a waiter" "$stuck" $two S=1 STEPS=0 TIMEOUTS=0 DEATHS=0 BELL WITHOUT_RECHECK
breaks "the count of waiters is loaded before the word is stored" "$stuck" \
  $two S=1 STEPS=0 TIMEOUTS=1 DEATHS=0 BELL WITHOUT_FENCE

holds "2 ranks, segments and staging" W=2 R=2 CALLS=4 S=2 STEPS=3 TIMEOUTS=1 DEATHS=1
holds "2 ranks, one slot" W=2 R=1 CALLS=3 S=1 STEPS=3 TIMEOUTS=2 DEATHS=1
holds "2 ranks on the bell" W=2 R=2 CALLS=2 S=1 STEPS=3 TIMEOUTS=1 DEATHS=1 BELL
holds "3 ranks, frames" W=3 R=2 CALLS=4 S=0 STEPS=0 TIMEOUTS=2 DEATHS=1
holds "3 ranks, a segment, nobody fails" W=3 R=2 CALLS=3 S=1 STEPS=0 TIMEOUTS=0 DEATHS=0
holds "3 ranks, a segment" W=3 R=2 CALLS=3 S=1 STEPS=0 TIMEOUTS=1 DEATHS=0
holds "3 ranks, a segment, one may die" W=3 R=2 CALLS=2 S=1 STEPS=0 TIMEOUTS=1 DEATHS=1
holds "3 ranks, staging" W=3 R=2 CALLS=2 S=0 STEPS=3 TIMEOUTS=1 DEATHS=1
holds "3 ranks, staging, not all read" W=3 R=2 CALLS=2 S=0 STEPS=3 TIMEOUTS=1 DEATHS=1 SCATTER
holds "3 ranks on the bell" W=3 R=2 CALLS=1 S=1 STEPS=0 TIMEOUTS=1 DEATHS=1 BELL
echo "model: $held settings hold, $broken broken ones fail"
