/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A device's executors: a few threads that run admitted waiters. A parked write is carried out here,
 * because the worker that received it has long gone on to other requests and the flusher must not
 * be held up by it. Each device has its own, so that a slow one keeps nobody else waiting.
 *
 * A stable write is synced in here too. While a thread waits for that, another takes its place, up
 * to EXECUTORS_MAX; the surplus ends when it is idle again.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

#define EXECUTORS_MAX 64

struct dc_executor {
	unsigned int wanted; /* threads that do not wait for a device */
	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t work, ended;
	struct dc_waiter *first, **last;
	unsigned int nr_threads, nr_blocked;
	bool stop;
};

static __thread struct dc_executor *mine;

static void run_one(struct dc_waiter *w)
{
	struct dc_engine *eng = w->exp->eng;

	/* First, while the write still keeps its connection alive. */
	if (w->resume && eng->ops->client_resume)
		eng->ops->client_resume(eng->host, w->connection);
	w->run(w, w->status);
}

static void *executor_thread(void *arg)
{
	struct dc_executor *ex = arg;

	pthread_setname_np(pthread_self(), "dc_executor");
	mine = ex;
	pthread_mutex_lock(&ex->lock);
	for (;;) {
		struct dc_waiter *w = ex->first;

		if (!w) {
			if (ex->stop || ex->nr_threads - ex->nr_blocked > ex->wanted)
				break;
			pthread_cond_wait(&ex->work, &ex->lock);
			continue;
		}
		ex->first = w->next;
		if (!ex->first)
			ex->last = &ex->first;
		pthread_mutex_unlock(&ex->lock);
		run_one(w);
		pthread_mutex_lock(&ex->lock);
	}
	ex->nr_threads--;
	pthread_cond_signal(&ex->ended);
	pthread_mutex_unlock(&ex->lock);
	return NULL;
}

/* ex->lock held */
static void spawn(struct dc_executor *ex)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, executor_thread, ex) == 0)
		ex->nr_threads++;
	pthread_attr_destroy(&attr);
}

struct dc_executor *dc_executor_new(unsigned int threads)
{
	struct dc_executor *ex = dc_zalloc(sizeof(*ex));

	pthread_mutex_init(&ex->lock, NULL);
	pthread_cond_init(&ex->work, NULL);
	pthread_cond_init(&ex->ended, NULL);
	ex->last = &ex->first;
	ex->wanted = threads;
	pthread_mutex_lock(&ex->lock);
	for (unsigned int i = 0; i < threads; i++)
		spawn(ex);
	dc_assert(ex->nr_threads > 0);
	pthread_mutex_unlock(&ex->lock);
	return ex;
}

void dc_executor_free(struct dc_executor *ex)
{
	if (!ex)
		return;
	pthread_mutex_lock(&ex->lock);
	ex->stop = true;
	pthread_cond_broadcast(&ex->work);
	while (ex->nr_threads > 0)
		pthread_cond_wait(&ex->ended, &ex->lock);
	pthread_mutex_unlock(&ex->lock);
	pthread_cond_destroy(&ex->work);
	pthread_cond_destroy(&ex->ended);
	pthread_mutex_destroy(&ex->lock);
	free(ex);
}

void dc_executor_run(struct dc_executor *ex, struct dc_waiter *list)
{
	struct dc_waiter *next;
	bool one = !list->next;

	if (!ex) {
		for (; list; list = next) {
			next = list->next;
			run_one(list);
		}
		return;
	}
	pthread_mutex_lock(&ex->lock);
	*ex->last = list;
	while (list->next)
		list = list->next;
	ex->last = &list->next;
	if (one)
		pthread_cond_signal(&ex->work);
	else
		pthread_cond_broadcast(&ex->work);
	pthread_mutex_unlock(&ex->lock);
}

void dc_executor_blocks(void)
{
	struct dc_executor *ex = mine;

	if (!ex)
		return;
	pthread_mutex_lock(&ex->lock);
	ex->nr_blocked++;
	if (ex->nr_threads - ex->nr_blocked < ex->wanted && ex->nr_threads < EXECUTORS_MAX)
		spawn(ex);
	pthread_mutex_unlock(&ex->lock);
}

void dc_executor_goes_on(void)
{
	struct dc_executor *ex = mine;

	if (!ex)
		return;
	pthread_mutex_lock(&ex->lock);
	ex->nr_blocked--;
	pthread_mutex_unlock(&ex->lock);
}
