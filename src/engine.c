/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The engine as a whole: its making and ending, its devices, its log. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

void dc_log(struct dc_engine *eng, enum dc_log_level level, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (!eng->ops->log)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	eng->ops->log(eng->host, level, text);
}

struct dc_engine *dc_engine_new(const struct dc_host_ops *ops, void *host,
				const struct dc_engine_options *options)
{
	struct dc_engine *eng = dc_zalloc_line(sizeof(*eng));

	eng->ops = ops;
	eng->host = host;
	eng->opt = *options;
	if (eng->opt.max_open_files == 0)
		eng->opt.max_open_files = 1024;
	eng->max_open = eng->opt.max_open_files;
	pthread_mutex_init(&eng->lock, NULL);
	pthread_mutex_init(&eng->idle_lock, NULL);
	TAILQ_INIT(&eng->idle);
	pthread_mutex_init(&eng->orphan_lock, NULL);
	TAILQ_INIT(&eng->orphans);
	pthread_mutex_init(&eng->pool.lock, NULL);
	TAILQ_INIT(&eng->pool.exports);
	TAILQ_INIT(&eng->pool.borrowers);
	dc_engine_set_dirty_bytes(eng, options->dirty_bytes);
	for (int i = 0; i < DC_SHARDS; i++)
		pthread_mutex_init(&eng->shard[i].lock, NULL);
	return eng;
}

void dc_engine_free(struct dc_engine *eng)
{
	struct dc_device *dev, *next;

	for (dev = eng->devices; dev; dev = next) {
		struct dc_turn *turn;

		next = dev->next;
		dc_assert(TAILQ_EMPTY(&dev->exports));
		atomic_store(&dev->stop, true);
		dev->be->ops->wake(dev->be);
		if (dev->threaded)
			pthread_join(dev->thread, NULL);
		dc_syncer_free(atomic_load(&dev->syncer));
		dc_assert(dev->in_flight == 0);
		dc_executor_free(dev->exec);
		while ((turn = LIST_FIRST(&dev->free_turns))) {
			LIST_REMOVE(turn, link);
			free(turn->runs.run);
			free(turn->again.run);
			free(turn);
		}
		dev->be->ops->free(dev->be);
		dc_fault_free(dev->fault);
		pthread_cond_destroy(&dev->cond);
		pthread_mutex_destroy(&dev->lock);
		dc_assert(TAILQ_EMPTY(&dev->watched));
		pthread_mutex_destroy(&dev->watch_lock);
		free(dev);
	}
	dc_orphans_free(eng);
	dc_assert(TAILQ_EMPTY(&eng->pool.exports) && eng->pool.granted == eng->pool.left);
	free(eng->pool.device);
	pthread_mutex_destroy(&eng->pool.lock);
	dc_assert(TAILQ_EMPTY(&eng->idle));
	for (int i = 0; i < DC_SHARDS; i++) {
		dc_assert(eng->shard[i].nr == 0);
		free(eng->shard[i].bucket);
		pthread_mutex_destroy(&eng->shard[i].lock);
	}
	pthread_mutex_destroy(&eng->idle_lock);
	pthread_mutex_destroy(&eng->lock);
	free(eng);
}

static struct dc_backend *default_backend(struct dc_engine *eng, int *err)
{
	struct dc_backend *be = dc_backend_uring(err);

	if (be)
		return be;
	if (!atomic_exchange(&eng->said_no_uring, true))
		dc_log(eng, DC_LOG_WARN,
		       "io_uring is not available (%s): the flusher uses plain system calls on threads of "
		       "its own. See kernel.io_uring_disabled, seccomp, or RLIMIT_MEMLOCK",
		       strerror(-*err));
	return dc_backend_threads(err);
}

struct dc_backend *dc_backend_make(struct dc_device *dev, int *err)
{
	struct dc_backend *be = dev->make ? dev->make(err) : default_backend(dev->eng, err);

	return be && dev->fault ? dc_backend_fault(be, dev->fault) : be;
}

static struct dc_device *device_get(struct dc_engine *eng, uint64_t id,
				    struct dc_backend *(*make)(int *err), bool faulty, int *err)
{
	struct dc_device *dev;

	*err = 0;
	pthread_mutex_lock(&eng->lock);
	for (dev = eng->devices; dev; dev = dev->next)
		if (dev->id == id) {
			if (faulty && !dev->fault) {
				*err = -EBUSY;
				dev = NULL;
			}
			goto out;
		}
	dev = dc_zalloc_line(sizeof(*dev));
	dev->magic = DC_DEVICE_MAGIC;
	dev->id = id;
	dev->eng = eng;
	dev->make = make;
	if (faulty)
		dev->fault = dc_fault_new(eng->ops->now_ns, eng->host);
	dev->be = dc_backend_make(dev, err);
	if (!dev->be) {
		dc_fault_free(dev->fault);
		free(dev);
		dev = NULL;
		goto out;
	}
	pthread_mutex_init(&dev->lock, NULL);
	pthread_cond_init(&dev->cond, NULL);
	pthread_mutex_init(&dev->watch_lock, NULL);
	TAILQ_INIT(&dev->watched);
	TAILQ_INIT(&dev->kicked);
	TAILQ_INIT(&dev->exports);
	TAILQ_INIT(&dev->active);
	TAILQ_INIT(&dev->to_await);
	TAILQ_INIT(&dev->awaited);
	TAILQ_INIT(&dev->lingering);
	TAILQ_INIT(&dev->handed_over);
	LIST_INIT(&dev->free_turns);
	if (eng->opt.threads) {
		int rc = pthread_create(&dev->thread, NULL, dc_flusher_thread, dev);

		if (rc) {
			*err = -rc;
			dev->be->ops->free(dev->be);
			dc_fault_free(dev->fault);
			free(dev);
			dev = NULL;
			goto out;
		}
		dev->threaded = true;
	}
	if (eng->opt.executors)
		dev->exec = dc_executor_new(eng->opt.executors);
	dev->next = eng->devices;
	eng->devices = dev;
out:
	pthread_mutex_unlock(&eng->lock);
	return dev;
}

struct dc_device *dc_device_get(struct dc_engine *eng, uint64_t id,
				struct dc_backend *(*make)(int *err), int *err)
{
	return device_get(eng, id, make, false, err);
}

struct dc_device *dc_device_get_faulty(struct dc_engine *eng, uint64_t id,
				       struct dc_backend *(*make)(int *err), int *err)
{
	return device_get(eng, id, make, true, err);
}

bool dc_device_fault(struct dc_device *dev, const char *spec, char *msg)
{
	if (!dev->fault) {
		snprintf(msg, DC_FAULT_MSG,
			 "Fault_Injection is not on: set it in the first export of the device");
		return false;
	}
	if (!dc_fault_set(dev->fault, spec, msg))
		return false;
	dev->be->ops->wake(dev->be);
	return true;
}

int dc_write_fault(struct dc_export *exp, uint64_t offset, uint64_t *len)
{
	struct dc_fault_hit hit;

	if (!dc_fault_decide(exp->dev->fault, DC_FAULT_WRITE, offset, *len, &hit))
		return 0;
	dc_fault_delay(exp->dev->fault, &hit);
	*len = dc_min_u64(*len, hit.len);
	return hit.err;
}

void dc_engine_devices(struct dc_engine *eng,
		       void (*each)(void *arg, const struct dc_device_stats *stats), void *arg)
{
	struct dc_device *dev;

	pthread_mutex_lock(&eng->lock);
	dev = eng->devices;
	pthread_mutex_unlock(&eng->lock);
	for (; dev; dev = dev->next) {
		struct dc_bandwidth bw = { .bytes_per_s = atomic_load(&dev->bandwidth_now) };
		struct dc_device_stats st = {
			.id = dev->id,
			.backend = dev->be->ops->name,
			.bandwidth = bw.bytes_per_s,
			.writeback = atomic_load(&dev->in_flight_now) << DC_PAGE_SHIFT,
			.window = dc_bw_window(&bw, 100),
		};

		each(arg, &st);
	}
}
