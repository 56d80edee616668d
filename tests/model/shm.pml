/* SPDX-License-Identifier: MIT
 * The shared-memory protocol of one group, small enough that SPIN can walk through every order of events.
 * `make model` runs it in many settings (run.sh). With one rule taken out it must fail, and run.sh checks that it does.
 *
 * Every shared word has one writer, its rank, and only grows; one of each slot says whose frame lies there. A rank that
 * has seen a later frame of a peer knows by that, too, that the peer had left the calls before. A store or load of a
 * word is one step, and so is what a rank does to memory (frame, block in a segment, staging buffer). The content of
 * memory is the number of the call that wrote it, so content that comes too early or too late is seen where it is read.
 * Memory is sequentially consistent here: the code's release and acquire keep what one rank publishes in its order. Its
 * bell needs more (WITHOUT_FENCE shows why): a fence of its own, or one that the sleeper has the system make for both.
 *
 * Settings:
 *   W ranks, R slots a rank, CALLS calls, S segments in the pool;
 *   STEPS of a call that gets no segment (0: such a call ends with its frames), SCATTER: not every rank reads in them,
 *   TIMEOUTS: how often ranks may give up while they wait, DEATHS 1: one rank may die, anywhere;
 *   BELL: ranks sleep on the futex; without it a wait ends as soon as it can.
 * A rule is taken out by WITHOUT_…, or broken by BIT_TOO_EARLY or LATE_WRITE; run.sh says which is which.
 */
#define NONE 254
#define ALL ((1 << S) - 1)
#define AT(call, step) ((call) * 8 + (step))
#define HAS_LEFT(p) (left[p] >= k)
#define SLOT(p) ((p) * R + k % R)
/* Blocks differ in size, so not every rank writes in every step; where all do, `progress` implies `consumed`. */
#define STEPS_OF(p) ((p) == 0 -> STEPS : ((p) == 1 -> 1 : 0))
/* Nor does every rank read: the last one has no share in a reduce-scatter, and is done before the others. */
#ifdef SCATTER
#define READS(p) ((p) != W - 1)
#else
#define READS(p) true
#endif

/* The published words, and each rank's bell with the count of those who wait on it. */
byte left[W], progress[W], consumed[W];
byte bell[W], waiters[W];
byte asleep[W]; /* 1 + the rank on whose bell this one sleeps */

/* The memory. Call k puts rank r's block into cell (r + k) mod W, so that blocks of two calls overlap. */
byte slot_call[W * R], slot_dropped[W * R];
byte posted[W * R]; /* the word of a slot that says whose frame lies there, published last */
byte stage[W * 2];
#if S > 0
byte cell[S * W];
#endif

/* What only the model knows. */
bool dead[W]; /* killed, or ended after its last call: a peer cannot tell which */
bool killed;  /* some rank was killed */
byte gave_up; /* bit k: a rank gave up in call k by itself */
byte decided[CALLS + 1];
byte budget = TIMEOUTS;

/* --- the rules that can be taken out ------------------------------------------------------------------------------ */
#ifdef WITHOUT_GUARD
#define SLOT_IS_FREE(p) true
#else
#define SLOT_IS_FREE(p) (left[p] + R >= k)
#endif
#ifdef WITHOUT_MASK
#define COUNTS(p) ((p) != 0)
#else
#define COUNTS(p) true
#endif
#ifdef WITHOUT_LEAVERS
#define NEVER_POSTS(p) false
#else
#define NEVER_POSTS(p) HAS_LEFT(p)
#endif
#ifdef WITHOUT_LEAVERS_STAGED
#define NEVER_READS(p) false
#else
#define NEVER_READS(p) HAS_LEFT(p)
#endif
#ifdef WITHOUT_RECHECK
#define RECHECK(condition) false
#else
#define RECHECK(condition) (condition)
#endif
#ifdef WITHOUT_REREAD
#define AFTER_LEFT(enough) false
#else
#define AFTER_LEFT(enough) (enough)
#endif
/* A rank whose process is gone fails this call for all, unless it was done with it. */
#ifdef WITHOUT_DONE
#define IS_LOST(q) dead[q]
#else
#define IS_LOST(q) (dead[q] && left[q] < k)
#endif
#if W > 2
#define ANY_IS_LOST (IS_LOST(0) || IS_LOST(1) || IS_LOST(2))
#else
#define ANY_IS_LOST (IS_LOST(0) || IS_LOST(1))
#endif

/* --- events ------------------------------------------------------------------------------------------------------- */
/* Stands after every step that others can see: when a rank dies between two of them makes no difference to others. */
#if DEATHS > 0
inline may_die() {
  if
  :: atomic { !killed -> killed = true; dead[me] = true; goto gone }
  :: true
  fi
}
#else
inline may_die() { skip }
#endif

#define GIVE_UP budget--; gave_up = gave_up | (1 << k)

/* --- waiting and publishing --------------------------------------------------------------------------------------- */
/* A wait for peer p has three ends: there is enough; it is hopeless, since p has left the call; or a rank is lost. In
 * the second p may have published just before what is awaited, so the rank looks once more before it raises. */
inline look_again(enough) {
  if
  :: enough -> break
  :: else -> goto early
  fi
}

#ifdef BELL
/* Register, read the bell, look again, sleep unless the bell has rung since. Death is seen when a time slice ends, and
 * the words are looked at again: a rank may have died between publishing and ringing. */
inline sleep_on_bell(enough, hopeless) {
  waiters[p]++;
  may_die();
  rung = bell[p];
  if
  :: RECHECK(enough || hopeless)
  :: else ->
    atomic {
      if
      :: bell[p] == rung -> asleep[me] = p + 1
      :: else
      fi
    }
    if
    :: asleep[me] == 0
    :: atomic { dead[p] || ANY_IS_LOST -> asleep[me] = 0 }
    :: atomic { budget > 0 -> GIVE_UP; asleep[me] = 0; waiters[p]--; rung = 0; goto early }
    fi
  fi;
  atomic { waiters[p]--; rung = 0 }
}

inline await(enough, hopeless) {
  do
  :: enough -> break
  :: else ->
    if
    :: hopeless -> look_again(AFTER_LEFT(enough))
    :: else ->
      if
      :: ANY_IS_LOST -> goto early
      :: else -> sleep_on_bell(enough, hopeless)
      fi
    fi
  od
}

inline wake() {
  d_step {
    for (q : 0 .. W - 1) {
      if
      :: asleep[q] == me + 1 -> asleep[q] = 0
      :: else
      fi
    }
    q = 0
  }
}

inline publish(word, value) {
#ifdef WITHOUT_FENCE
  had_waiters = (waiters[me] > 0); /* the load of the count overtakes the stores */
#endif
  word = value;
  may_die();
#ifndef WITHOUT_FENCE
  had_waiters = (waiters[me] > 0);
#endif
  if
  :: had_waiters -> bell[me]++; may_die(); wake()
  :: else
  fi;
  had_waiters = false;
  may_die()
}
#else
inline await(enough, hopeless) {
  do
  :: enough -> break
  :: else ->
    if
    :: enough -> break
    :: hopeless -> look_again(AFTER_LEFT(enough))
    :: ANY_IS_LOST -> goto early
    :: atomic { budget > 0 -> GIVE_UP; goto early }
    fi
  od
}

inline publish(word, value) {
  word = value;
  may_die()
}
#endif

/* All peers in turn; p is the peer in what is awaited. */
inline await_peers(enough, hopeless) {
  for (p : 0 .. W - 1) {
    if
    :: p != me -> await(enough, hopeless)
    :: else
    fi
  }
  p = 0
}

/* --- results ------------------------------------------------------------------------------------------------------ */
inline check_result(s, call) {
  d_step {
    for (q : 0 .. W - 1) { assert(cell[s * W + q] == call) } /* a result is of its own call, as long as it is held */
    q = 0
  }
}

inline release(s) {
  atomic {
    check_result(s, held[s]);
    held[s] = 0;
#ifndef WITHOUT_CLEAN
    written[s] = false; /* the pages that the user wrote to are discarded, then the bit is set */
#endif
    dropped = dropped | (1 << s)
  }
}

/* Between two calls the user lets go of any results, or of none; after the last call, of all. */
inline release_some(all) {
  for (s : 0 .. S - 1) {
    if
    :: held[s] != 0 -> release(s)
    :: held[s] == 0 || !all
    fi
  }
  s = 0
}

/* --- a call ------------------------------------------------------------------------------------------------------- */
inline exchange() {
  await_peers(SLOT_IS_FREE(p), false);
  atomic {
    slot_call[SLOT(me)] = k;
    slot_dropped[SLOT(me)] = dropped;
    free = (COUNTS(me) -> dropped : ALL)
  }
  may_die();
  publish(posted[SLOT(me)], k);
#ifdef LATE_WRITE
  atomic {
    if
    :: late != NONE -> cell[late * W + (me + k - 1) % W] = k - 1; late = NONE
    :: else
    fi
  }
#endif
  await_peers(posted[SLOT(p)] == k, NEVER_POSTS(p));
  for (p : 0 .. W - 1) {
    if
    :: p == me
    :: p != me && posted[SLOT(p)] != k ->
      assert(slot_call[SLOT(p)] < k); /* it skipped this call; its frame was not written over */
      goto early
    :: p != me && posted[SLOT(p)] == k ->
      atomic { /* a step later: the frame must still be there */
        assert(slot_call[SLOT(p)] == k);
        if
        :: COUNTS(p) -> free = free & slot_dropped[SLOT(p)]
        :: else
        fi
      }
    fi
  }
  p = 0
}

/* The lowest free segment, or none: the same on every rank. */
inline decide() {
  d_step {
    chosen = NONE;
    for (s : 0 .. S - 1) {
      if
      :: chosen == NONE && (free & (1 << s)) -> chosen = s
      :: else
      fi
    }
    s = 0;
    free = 0;
    assert(decided[k] == 0 || decided[k] == chosen + 1);
    decided[k] = chosen + 1
  }
}

inline through_segment() {
  dropped = dropped & ~(1 << chosen);
  cell[chosen * W + (me + k) % W] = k;
  may_die();
  if
  :: held[chosen] != 0 -> check_result(chosen, held[chosen])
  :: else
  fi;
  publish(progress[me], AT(k, 1));
  await_peers(progress[p] >= AT(k, 1), HAS_LEFT(p));
  atomic {
    check_result(chosen, k);
    assert(!written[chosen]); /* stale private pages would hide the result */
    held[chosen] = k;
    written[chosen] = true; /* the worst case: the user writes to it */
#ifdef BIT_TOO_EARLY
    dropped = dropped | (1 << chosen)
#endif
  }
}

inline through_staging() {
  for (s : 0 .. STEPS - 1) {
    if
    :: s < STEPS_OF(me) ->
#ifndef WITHOUT_CONSUMED
      if
      :: s >= 2 -> await_peers(consumed[p] >= AT(k, s - 2), NEVER_READS(p))
      :: else
      fi;
#endif
      stage[me * 2 + s % 2] = AT(k, s);
      may_die();
      publish(progress[me], AT(k, s))
    :: else
    fi;
    for (p : 0 .. W - 1) {
      if
      :: p != me && s < STEPS_OF(p) && READS(me) ->
        await(progress[p] >= AT(k, s), HAS_LEFT(p));
        assert(stage[p * 2 + s % 2] == AT(k, s))
      :: else
      fi
    }
    p = 0;
    publish(consumed[me], AT(k, s))
  }
  s = 0
}

proctype rank(byte me) {
  byte k, p, q, s, free, chosen;
  byte dropped = ALL;
#if S > 0
  byte held[S]; /* the call whose result the user holds in a segment */
  bool written[S];
#endif
#ifdef BELL
  byte rung;
  bool had_waiters;
#endif
#ifdef LATE_WRITE
  byte late = NONE;
#endif

  may_die();
  for (k : 1 .. CALLS) {
    chosen = NONE;
#if S > 0
    release_some(false);
#endif
    exchange();
#if S > 0
    decide();
    if
    :: chosen != NONE -> through_segment(); goto done
    :: else
    fi;
#endif
#if STEPS > 0
    through_staging();
#endif
    goto done;

  early:
    atomic {
      assert(killed || (gave_up & (1 << k))); /* no error unless a rank failed in this very call, or died */
      p = 0;
      s = 0;
      free = 0;
      if
      :: chosen != NONE ->
#ifdef LATE_WRITE
        late = chosen;
#endif
        dropped = dropped | (1 << chosen)
      :: else
      fi
    }

  done:
    chosen = 0;
    publish(left[me], k)
  }
#if S > 0
  release_some(true);
#endif
  if
  :: dead[me] = true /* it ends in good order, which peers cannot tell from death */
  :: true            /* or goes on with other things */
  fi;

gone:
  skip
}

init {
  byte r;
  atomic {
    for (r : 0 .. W - 1) { run rank(r) }
  }
}
