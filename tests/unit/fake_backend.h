/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A device that does nothing but what the test tells it: operations are held, released or failed
 * by script, and everything it was asked for is on record.
 */
#ifndef TEST_FAKE_BACKEND_H
#define TEST_FAKE_BACKEND_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dontcache/backend.h"

#define FAKE_KINDS 3
#define FAKE_BIT(kind) (1U << (kind))

/* One request on record: submitted to the flusher's queue, or (direct) called as a function. */
struct fake_call {
	enum dc_op_kind kind;
	bool direct;
	int fd;
	uint64_t offset, len;
};

struct fake {
	struct dc_backend be;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	/* script; under lock where threads are about */
	unsigned int hold;    /* FAKE_BIT()s: kinds that stay in flight until released */
	int fail[FAKE_KINDS]; /* result of the next fail_n operations of that kind */
	unsigned int fail_n[FAKE_KINDS];
	int fail_sync, fail_direct; /* the same for sync() and writeback() */
	unsigned int fail_sync_n, fail_direct_n;
	int pending, pending_fd; /* what error() will tell, once, through that descriptor */
	bool no_timeout; /* wait() ends by wake() or completions alone: a lost wake-up hangs */
	bool block_sync; /* sync() waits for fake_allow_sync() */
	unsigned int sync_permits;
	/* Called at each request, without the lock; may be NULL. */
	void (*on_call)(void *arg, const struct fake_call *call);
	/* What cachestat(2) would say; NULL: -ENOSYS. */
	int (*cachestat)(void *arg, int fd, uint64_t offset, uint64_t len, struct dc_cachestat *st);
	void *arg;
	/* A wait() that has nothing to give lets this clock pass instead; may be NULL. */
	_Atomic uint64_t *clock;
	/* state; under lock */
	struct dc_op *held, **held_last, *done, **done_last;
	unsigned int nr_held, in_sync;
	bool woken;
	unsigned int wakes;
	/* record */
	struct fake_call *call;
	unsigned int nr_calls, cap_calls;
	unsigned int submitted[FAKE_KINDS], syncs, directs, drops;
};

/** For dc_device_get(); the backend made last is in fake_made. */
struct dc_backend *fake_make(int *err);
extern struct fake *fake_made;

/** The oldest `n` of the held operations finish, with `res`. Returns how many there were. */
unsigned int fake_release(struct fake *f, unsigned int n, int res);
/** Blocked sync() calls, now or later, go on: `n` of them. */
void fake_allow_sync(struct fake *f, unsigned int n);
/** Waits (really) until `n` callers are blocked in sync(). */
void fake_await_sync(struct fake *f, unsigned int n);
/** Forgets the record; not the script, nor what is held. */
void fake_forget_calls(struct fake *f);

#endif
