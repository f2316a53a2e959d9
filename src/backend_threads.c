/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The fallback backend: plain system calls on a few threads, for machines where io_uring is
 * switched off (sysctl, seccomp, old kernels). Same semantics, one queue, no ring.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend_plain.h"
#include "dontcache/backend.h"
#include "util.h"

#define THREADS 8

struct threads {
	struct dc_backend be;
	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t work, finished;
	struct dc_op *first, **last, *done;
	bool woken, stop;

	unsigned int nr;
	pthread_t thread[THREADS];
};

static int run(struct dc_backend *be, const struct dc_op *op)
{
	switch (op->kind) {
	case DC_OP_WRITEBACK:
		if (op->strict)
			return dc_plain_writeback(be, op->fd, op->offset, op->len);
		if (sync_file_range(op->fd, (off64_t)op->offset, (off64_t)op->len, DC_START) < 0 ||
		    sync_file_range(op->fd, (off64_t)op->offset, (off64_t)op->len, DC_WAIT) < 0)
			return -errno;
		return 0;
	case DC_OP_SYNC:
		return dc_plain_sync(be, op->fd);
	case DC_OP_DROP:
		dc_plain_drop(be, op->fd, op->offset, op->len);
		return 0;
	}
	return -EINVAL;
}

static void *worker(void *arg)
{
	struct threads *t = arg;

	pthread_setname_np(pthread_self(), "dc_io");
	pthread_mutex_lock(&t->lock);
	while (!t->stop || t->first) {
		struct dc_op *op = t->first;

		if (!op) {
			pthread_cond_wait(&t->work, &t->lock);
			continue;
		}
		t->first = op->next;
		if (!t->first)
			t->last = &t->first;
		pthread_mutex_unlock(&t->lock);
		op->res = run(&t->be, op);
		pthread_mutex_lock(&t->lock);
		op->next = t->done;
		t->done = op;
		pthread_cond_signal(&t->finished);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void threads_submit(struct dc_backend *be, struct dc_op *op)
{
	struct threads *t = (struct threads *)be;

	op->next = NULL;
	pthread_mutex_lock(&t->lock);
	*t->last = op;
	t->last = &op->next;
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->lock);
}

static struct dc_op *threads_wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct threads *t = (struct threads *)be;
	struct timespec until;
	struct dc_op *done;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	if (timeout_ns >= 0) {
		until.tv_sec += timeout_ns / 1000000000;
		until.tv_nsec += timeout_ns % 1000000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000;
		}
	}
	pthread_mutex_lock(&t->lock);
	while (!t->done && !t->woken && rc != ETIMEDOUT) {
		if (timeout_ns < 0)
			pthread_cond_wait(&t->finished, &t->lock);
		else
			rc = pthread_cond_timedwait(&t->finished, &t->lock, &until);
	}
	t->woken = false;
	done = t->done;
	t->done = NULL;
	pthread_mutex_unlock(&t->lock);
	return done;
}

static void threads_wake(struct dc_backend *be)
{
	struct threads *t = (struct threads *)be;

	pthread_mutex_lock(&t->lock);
	t->woken = true;
	pthread_cond_signal(&t->finished);
	pthread_mutex_unlock(&t->lock);
}

static void threads_free(struct dc_backend *be)
{
	struct threads *t = (struct threads *)be;

	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_broadcast(&t->work);
	pthread_mutex_unlock(&t->lock);
	for (unsigned int i = 0; i < t->nr; i++)
		pthread_join(t->thread[i], NULL);
	pthread_cond_destroy(&t->work);
	pthread_cond_destroy(&t->finished);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static const struct dc_backend_ops threads_ops = {
	.name = "threads",
	.submit = threads_submit,
	.wait = threads_wait,
	.wake = threads_wake,
	.sync = dc_plain_sync,
	.writeback = dc_plain_writeback,
	.drop = dc_plain_drop,
	.cachestat = dc_plain_cachestat,
	.error = dc_plain_error,
	.reopen = dc_plain_reopen,
	.free = threads_free,
};

struct dc_backend *dc_backend_threads(int *err)
{
	struct threads *t = dc_zalloc(sizeof(*t));
	pthread_condattr_t attr;

	t->be.ops = &threads_ops;
	t->last = &t->first;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->finished, &attr);
	pthread_condattr_destroy(&attr);
	*err = 0;
	for (unsigned int i = 0; i < THREADS; i++) {
		int rc = pthread_create(&t->thread[t->nr], NULL, worker, t);

		if (rc == 0)
			t->nr++;
		else
			*err = -rc;
	}
	if (t->nr > 0) {
		*err = 0;
		return &t->be;
	}
	threads_free(&t->be);
	return NULL;
}
