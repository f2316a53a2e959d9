/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Exports: making, live limits, draining, ending, and what they say of themselves. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* As many slots as CPUs, up to 64: past that sharing a slot costs less than summing them. */
static unsigned int slots_wanted(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	unsigned int n = 1;

	while (n < 64 && n < (cpus > 0 ? cpus : 1))
		n *= 2;
	return n;
}

struct dc_export *dc_export_new(struct dc_device *dev, uint32_t id, const char *path,
				const struct dc_params *params)
{
	struct dc_export *exp = dc_zalloc_line(sizeof(*exp));

	dc_assert(dev->magic == DC_DEVICE_MAGIC);
	exp->magic = DC_EXPORT_MAGIC;
	exp->id = id;
	exp->path = strdup(path);
	dc_assert(exp->path);
	exp->eng = dev->eng;
	exp->dev = dev;
	exp->refs = 1;
	exp->nr_slots = slots_wanted();
	exp->slots = dc_zalloc_line(exp->nr_slots * sizeof(*exp->slots));
	pthread_mutex_init(&exp->lock, NULL);
	TAILQ_INIT(&exp->commits);
	TAILQ_INIT(&exp->quiet);
	dc_fair_init(&exp->fair);
	atomic_store(&exp->limit, params->dirty_bytes >> DC_PAGE_SHIFT);
	atomic_store(&exp->min_pages, params->min_bytes >> DC_PAGE_SHIFT);
	atomic_store(&exp->weight, params->weight);
	dc_pool_join(exp);
	dc_export_set_params(exp, params);
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->exports, exp, dev_link);
	pthread_mutex_unlock(&dev->lock);
	return exp;
}

void dc_export_set_params(struct dc_export *exp, const struct dc_params *p)
{
	pthread_mutex_lock(&exp->lock);
	exp->params = *p;
	atomic_store(&exp->background_wanted, dc_params_background(p) >> DC_PAGE_SHIFT);
	atomic_store(&exp->min_pages, p->min_bytes >> DC_PAGE_SHIFT);
	atomic_store(&exp->weight, p->weight);
	atomic_store(&exp->expire_ns, p->dirty_expire_centisecs * 10 * DC_NS_PER_MS);
	atomic_store(&exp->window_ms, p->writeback_window_ms);
	atomic_store(&exp->parked_cap, p->parked_bytes);
	atomic_store(&exp->drop_behind, p->drop_behind != 0);
	atomic_store(&exp->audit, p->audit != 0);
	pthread_mutex_unlock(&exp->lock);
	dc_pool_limit(exp, p->dirty_bytes >> DC_PAGE_SHIFT);
	dc_pool_strict(exp, p->strict_limit != 0);
	/* Under a smaller limit nothing comes in, not even what was kept ready. A larger limit
	 * admits at once; a smaller level is work at once. */
	dc_sweep(exp);
	if (atomic_load(&exp->contended) != 0)
		dc_dispatch(exp);
	dc_kick(exp);
}

void dc_export_get_params(struct dc_export *exp, struct dc_params *p)
{
	pthread_mutex_lock(&exp->lock);
	*p = exp->params;
	pthread_mutex_unlock(&exp->lock);
}

static void nap(struct dc_device *dev, uint64_t ns)
{
	struct timespec ts = { .tv_nsec = (long)ns };

	if (dev->threaded)
		nanosleep(&ts, NULL);
	else
		dc_device_poll(dev, (int64_t)ns);
}

uint64_t dc_export_drain(struct dc_export *exp, uint64_t timeout_ns)
{
	uint64_t start = dc_now(exp->eng), left;

	/* 0: parked writes only; until somebody drains in earnest, the rest goes its usual way. */
	atomic_store(&exp->drain_until, timeout_ns ? start + timeout_ns : UINT64_MAX);
	atomic_store(&exp->draining, true);
	dc_dispatch(exp);
	for (;;) {
		left = dc_dirty_pages(exp) + atomic_load(&exp->writeback);
		if (left == 0 || dc_now(exp->eng) - start >= timeout_ns)
			break;
		dc_kick(exp);
		nap(exp->dev, DC_NS_PER_MS);
	}
	return left << DC_PAGE_SHIFT;
}

void dc_export_put(struct dc_export *exp)
{
	if (atomic_fetch_sub(&exp->refs, 1) != 1)
		return;
	dc_assert(exp->heap_nr == 0);
	dc_fair_free(&exp->fair);
	dc_pool_gone(exp);
	pthread_mutex_destroy(&exp->lock);
	free(exp->heap);
	free(exp->slots);
	free(exp->path);
	free(exp);
}

/* Ends every claim and every reference that the engine itself holds on the export's files. */
static void forget(struct dc_file *file, void *arg)
{
	(void)arg;
	dc_file_forget(file);
}

bool dc_export_free(struct dc_export *exp, uint64_t timeout_ns)
{
	struct dc_device *dev = exp->dev;
	uint64_t start = dc_now(exp->eng), left;
	bool done;

	atomic_store(&exp->draining, true);
	dc_dispatch(exp);
	atomic_store(&exp->ended, true);
	left = dc_dirty_pages(exp);
	dc_files_each(exp, forget, NULL);
	dc_pool_leave(exp, left);
	pthread_mutex_lock(&dev->lock);
	exp->detach = true;
	dev->nr_detach++;
	done = exp->detached;
	pthread_mutex_unlock(&dev->lock);
	while (!done && dc_now(exp->eng) - start < timeout_ns) {
		dc_device_wake(dev);
		nap(dev, DC_NS_PER_MS);
		pthread_mutex_lock(&dev->lock);
		done = exp->detached;
		pthread_mutex_unlock(&dev->lock);
	}
	if (!done) {
		dc_log(exp->eng, DC_LOG_ERROR,
		       "export %u (%s): writeback does not end; its memory is leaked rather than "
		       "waited for",
		       exp->id, exp->path);
		return false;
	}
	dc_export_put(exp);
	return true;
}

struct dc_device *dc_export_device(const struct dc_export *exp)
{
	return exp->dev;
}

void dc_count_write_through(struct dc_export *exp)
{
	dc_count(exp, DC_CTR_WRITE_THROUGH, 1);
}

bool dc_export_has_dirty(struct dc_export *exp)
{
	return dc_dirty_pages(exp) > 0;
}

uint64_t dc_export_error_generation(const struct dc_export *exp)
{
	return atomic_load(&exp->error_generation);
}

void dc_export_stats(struct dc_export *exp, struct dc_export_stats *st)
{
	uint64_t used, dirty, wb, withheld, stash = 0;

	memset(st, 0, sizeof(*st));
	st->id = exp->id;
	st->path = exp->path;
	for (unsigned int i = 0; i < exp->nr_slots; i++) {
		stash += atomic_load(&exp->slots[i].stash);
		for (int c = 0; c < DC_NR_COUNTERS; c++)
			st->counters[c] +=
				atomic_load_explicit(&exp->slots[i].ctr[c], memory_order_relaxed);
	}
	dirty = dc_dirty_pages(exp);
	wb = atomic_load(&exp->writeback);
	withheld = atomic_load(&exp->withheld);
	used = atomic_load(&exp->used);
	used = used > withheld ? used - withheld : 0;
	st->dirty = dirty << DC_PAGE_SHIFT;
	st->writeback = wb << DC_PAGE_SHIFT;
	st->used = used << DC_PAGE_SHIFT;
	st->reserved = used > dirty + wb + stash ? (used - dirty - wb - stash) << DC_PAGE_SHIFT : 0;
	st->files = atomic_load(&exp->nr_files);
	st->unsynced_files = atomic_load(&exp->nr_unsynced);
	st->usable = atomic_load(&exp->usable) << DC_PAGE_SHIFT;
	st->background = atomic_load(&exp->background) << DC_PAGE_SHIFT;
	st->freerun = atomic_load(&exp->freerun) << DC_PAGE_SHIFT;
	st->setpoint = atomic_load(&exp->setpoint) << DC_PAGE_SHIFT;
	pthread_mutex_lock(&exp->lock);
	st->completion_rate = (uint64_t)exp->done.per_s << DC_PAGE_SHIFT;
	st->admission_rate = dc_fair_first(&exp->fair) ? (uint64_t)exp->pace.rate << DC_PAGE_SHIFT :
							 0;
	st->dirty_files = exp->heap_nr;
	st->parked = atomic_load(&exp->contended);
	st->parked_bytes = exp->parked_bytes;
	st->parked_connections = exp->nr_parkers;
	st->held = exp->nr_held;
	st->params = exp->params;
	pthread_mutex_unlock(&exp->lock);
}
