/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A few threads that run admitted waiters: a parked write is carried out here, because the worker
 * that received it has long gone on to other requests and the flusher must not be held up by it.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

struct dc_executor {
	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t cond;
	struct dc_waiter *first, **last;
	bool stop;

	unsigned int nr_threads;
	pthread_t thread[];
};

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
	pthread_mutex_lock(&ex->lock);
	for (;;) {
		struct dc_waiter *w = ex->first;

		if (!w) {
			if (ex->stop)
				break;
			pthread_cond_wait(&ex->cond, &ex->lock);
			continue;
		}
		ex->first = w->next;
		if (!ex->first)
			ex->last = &ex->first;
		pthread_mutex_unlock(&ex->lock);
		run_one(w);
		pthread_mutex_lock(&ex->lock);
	}
	pthread_mutex_unlock(&ex->lock);
	return NULL;
}

struct dc_executor *dc_executor_new(unsigned int threads)
{
	struct dc_executor *ex = dc_zalloc(sizeof(*ex) + threads * sizeof(pthread_t));

	pthread_mutex_init(&ex->lock, NULL);
	pthread_cond_init(&ex->cond, NULL);
	ex->last = &ex->first;
	for (unsigned int i = 0; i < threads; i++)
		if (pthread_create(&ex->thread[ex->nr_threads], NULL, executor_thread, ex) == 0)
			ex->nr_threads++;
	dc_assert(ex->nr_threads > 0);
	return ex;
}

void dc_executor_free(struct dc_executor *ex)
{
	if (!ex)
		return;
	pthread_mutex_lock(&ex->lock);
	ex->stop = true;
	pthread_cond_broadcast(&ex->cond);
	pthread_mutex_unlock(&ex->lock);
	for (unsigned int i = 0; i < ex->nr_threads; i++)
		pthread_join(ex->thread[i], NULL);
	pthread_cond_destroy(&ex->cond);
	pthread_mutex_destroy(&ex->lock);
	free(ex);
}

void dc_executor_run(struct dc_executor *ex, struct dc_waiter *list)
{
	unsigned int n = 0;

	if (!ex) {
		while (list) {
			struct dc_waiter *next = list->next;

			run_one(list);
			list = next;
		}
		return;
	}
	pthread_mutex_lock(&ex->lock);
	*ex->last = list;
	for (; list; list = list->next, n++)
		ex->last = &list->next;
	if (n == 1)
		pthread_cond_signal(&ex->cond);
	else
		pthread_cond_broadcast(&ex->cond);
	pthread_mutex_unlock(&ex->lock);
}
