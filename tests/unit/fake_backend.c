/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The scripted device: see fake_backend.h. */
#include "fake_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>

#include "util.h"

struct fake *fake_made;

static void record(struct fake *f, struct fake_call call)
{
	if (f->on_call)
		f->on_call(f->arg, &call);
	pthread_mutex_lock(&f->lock);
	if (f->nr_calls == f->cap_calls) {
		f->cap_calls = f->cap_calls ? 2 * f->cap_calls : 64;
		f->call = dc_realloc(f->call, f->cap_calls * sizeof(*f->call));
	}
	f->call[f->nr_calls++] = call;
	if (!call.direct)
		f->submitted[call.kind]++;
	else if (call.kind == DC_OP_SYNC)
		f->syncs++;
	else if (call.kind == DC_OP_DROP)
		f->drops++;
	else
		f->directs++;
	pthread_mutex_unlock(&f->lock);
}

static int next_result(int res, unsigned int *n)
{
	if (*n == 0)
		return 0;
	--*n;
	return res;
}

static void finish(struct fake *f, struct dc_op *op, int res)
{
	op->res = res;
	op->next = NULL;
	*f->done_last = op;
	f->done_last = &op->next;
	pthread_cond_broadcast(&f->cond);
}

static void fake_submit(struct dc_backend *be, struct dc_op *op)
{
	struct fake *f = (struct fake *)be;

	record(f, (struct fake_call){ op->kind, false, op->fd, op->offset, op->len });
	pthread_mutex_lock(&f->lock);
	op->next = NULL;
	if (f->hold & FAKE_BIT(op->kind)) {
		*f->held_last = op;
		f->held_last = &op->next;
		f->nr_held++;
	} else {
		finish(f, op, next_result(f->fail[op->kind], &f->fail_n[op->kind]));
	}
	pthread_mutex_unlock(&f->lock);
}

static struct dc_op *fake_wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct fake *f = (struct fake *)be;
	struct dc_op *done;

	pthread_mutex_lock(&f->lock);
	if (f->clock) {
		if (!f->done && timeout_ns > 0)
			atomic_fetch_add(f->clock, (uint64_t)timeout_ns);
	} else {
		struct timespec until;
		int rc = 0;

		clock_gettime(CLOCK_MONOTONIC, &until);
		/* Never longer than a tick, so that a virtual clock set forward is noticed; but
		 * without a timeout only a wake() ends it, or sleeping too long would not show. */
		until.tv_nsec += timeout_ns >= 0 && timeout_ns < 10000000 ? timeout_ns : 10000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		while (!f->done && !f->woken && rc != ETIMEDOUT) {
			if (timeout_ns < 0 || f->no_timeout)
				pthread_cond_wait(&f->cond, &f->lock);
			else
				rc = pthread_cond_timedwait(&f->cond, &f->lock, &until);
		}
	}
	f->woken = false;
	done = f->done;
	f->done = NULL;
	f->done_last = &f->done;
	pthread_mutex_unlock(&f->lock);
	return done;
}

static void fake_wake(struct dc_backend *be)
{
	struct fake *f = (struct fake *)be;

	pthread_mutex_lock(&f->lock);
	f->woken = true;
	f->wakes++;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

static int fake_sync(struct dc_backend *be, int fd)
{
	struct fake *f = (struct fake *)be;
	int res;

	record(f, (struct fake_call){ DC_OP_SYNC, true, fd, 0, 0 });
	pthread_mutex_lock(&f->lock);
	f->in_sync++;
	pthread_cond_broadcast(&f->cond);
	if (f->block_sync) {
		while (f->sync_permits == 0)
			pthread_cond_wait(&f->cond, &f->lock);
		f->sync_permits--;
	}
	f->in_sync--;
	res = next_result(f->fail_sync, &f->fail_sync_n);
	pthread_mutex_unlock(&f->lock);
	return res;
}

static int fake_writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	struct fake *f = (struct fake *)be;
	int res;

	record(f, (struct fake_call){ DC_OP_WRITEBACK, true, fd, offset, len });
	pthread_mutex_lock(&f->lock);
	res = next_result(f->fail_direct, &f->fail_direct_n);
	pthread_mutex_unlock(&f->lock);
	return res;
}

static void fake_drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	record((struct fake *)be, (struct fake_call){ DC_OP_DROP, true, fd, offset, len });
}

static int fake_cachestat(struct dc_backend *be, int fd, uint64_t offset, uint64_t len,
			  struct dc_cachestat *st)
{
	struct fake *f = (struct fake *)be;

	return f->cachestat ? f->cachestat(f->arg, fd, offset, len, st) : -ENOSYS;
}

static void fake_free(struct dc_backend *be)
{
	struct fake *f = (struct fake *)be;

	dc_assert(!f->held && !f->done && f->in_sync == 0);
	pthread_cond_destroy(&f->cond);
	pthread_mutex_destroy(&f->lock);
	free(f->call);
	free(f);
	fake_made = NULL;
}

static int fake_error(struct dc_backend *be, int fd)
{
	struct fake *f = (struct fake *)be;
	int err = 0;

	pthread_mutex_lock(&f->lock);
	if (fd == f->pending_fd) {
		err = f->pending;
		f->pending = 0;
	}
	pthread_mutex_unlock(&f->lock);
	return err;
}

static int fake_reopen(struct dc_backend *be, int fd)
{
	(void)be;
	return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static const struct dc_backend_ops fake_ops = {
	.name = "fake",
	.submit = fake_submit,
	.wait = fake_wait,
	.wake = fake_wake,
	.sync = fake_sync,
	.writeback = fake_writeback,
	.drop = fake_drop,
	.cachestat = fake_cachestat,
	.error = fake_error,
	.reopen = fake_reopen,
	.free = fake_free,
};

struct dc_backend *fake_make(int *err)
{
	struct fake *f = dc_zalloc(sizeof(*f));
	pthread_condattr_t attr;

	f->be.ops = &fake_ops;
	pthread_mutex_init(&f->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&f->cond, &attr);
	pthread_condattr_destroy(&attr);
	f->held_last = &f->held;
	f->done_last = &f->done;
	*err = 0;
	fake_made = f;
	return &f->be;
}

unsigned int fake_release(struct fake *f, unsigned int n, int res)
{
	unsigned int did = 0;

	pthread_mutex_lock(&f->lock);
	while (f->held && did < n) {
		struct dc_op *op = f->held;

		f->held = op->next;
		if (!f->held)
			f->held_last = &f->held;
		f->nr_held--;
		finish(f, op, res);
		did++;
	}
	pthread_mutex_unlock(&f->lock);
	return did;
}

void fake_allow_sync(struct fake *f, unsigned int n)
{
	pthread_mutex_lock(&f->lock);
	f->sync_permits += n;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

void fake_await_sync(struct fake *f, unsigned int n)
{
	pthread_mutex_lock(&f->lock);
	while (f->in_sync < n)
		pthread_cond_wait(&f->cond, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

void fake_forget_calls(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	f->nr_calls = 0;
	for (int i = 0; i < FAKE_KINDS; i++)
		f->submitted[i] = 0;
	f->syncs = f->directs = f->drops = 0;
	pthread_mutex_unlock(&f->lock);
}
