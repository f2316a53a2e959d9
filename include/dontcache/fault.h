/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Faults on purpose: how tests, and operators before they need it, see what happens when a device
 * fails. Rules say which operations go wrong and how; a device made with dc_device_get_faulty() obeys
 * them. An injected error is reported after the operation was really done: everybody is told that the data is
 * lost, and no dirty page is left over that nobody counts.
 *
 *     RULE[;RULE...]      RULE = OPERATIONS:WHAT[:KEY=VALUE[,KEY=VALUE...]]
 *
 *     OPERATIONS   writeback sync write drop any, several joined by |
 *                  writeback: the flusher's turns. sync: of COMMITs, stable writes, quiet files.
 *                  write: the client's write itself. any: all but drop.
 *     WHAT         an error's name (EIO ENOSPC EDQUOT EROFS ENOMEM EINVAL ENOSYS)
 *                  short=BYTES (write): only so much is written
 *                  delay=MS: it takes so much longer
 *                  hang: it does not end before the rules change
 *     KEY          count=N: so many times, then never again       after=N: not the first N
 *                  range=FIRST-END (bytes, suffixes K M G T): if it touches them
 *                  p=0.0..1.0 with seed=N: at random, repeatable   for=MS: only so long from now
 */
#ifndef DONTCACHE_FAULT_H
#define DONTCACHE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

struct dc_fault;
struct dc_backend;

enum dc_fault_op { DC_FAULT_WRITEBACK, DC_FAULT_SYNC, DC_FAULT_WRITE, DC_FAULT_DROP };

/* What is to happen to one operation. */
struct dc_fault_hit {
	int err;	     /* -errno to be reported; 0: none */
	uint64_t delay_ns;   /* UINT64_MAX: until the rules change */
	uint64_t len;	     /* of a write: bytes to be written; UINT64_MAX: all */
	uint64_t generation; /* of the rules that said so */
};

/** Makes an empty set of rules; `now_ns` is the clock. Any thread may use it. */
struct dc_fault *dc_fault_new(uint64_t (*now_ns)(void *host), void *host);
void dc_fault_free(struct dc_fault *f);

/** Room enough for every message. */
#define DC_FAULT_MSG 256

/** Replaces the rules; "off", "on" and "" mean none. What hangs goes on.
 * @return false with a message in msg[DC_FAULT_MSG] that names the rule and what is wrong with it; the
 *         former rules stay. */
bool dc_fault_set(struct dc_fault *f, const char *spec, char *msg);

/** Does a rule apply to this operation? Counts it. len 0: to the end of the file. */
bool dc_fault_decide(struct dc_fault *f, enum dc_fault_op op, uint64_t offset, uint64_t len,
		     struct dc_fault_hit *hit);

/** Grows with each change of the rules. */
uint64_t dc_fault_generation(struct dc_fault *f);

/** Sleeps as long as the hit says. */
void dc_fault_delay(struct dc_fault *f, const struct dc_fault_hit *hit);

/** A backend that obeys the rules and otherwise does what `inner` does, which it frees at its end. */
struct dc_backend *dc_backend_fault(struct dc_backend *inner, struct dc_fault *f);

#endif
