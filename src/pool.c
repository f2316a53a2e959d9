/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The server's budget, shared by all exports.
 *
 * An export may use its own limit less what is *withheld* from it. Withheld pages are taken out of the
 * export's budget as a writer's are, by budget_take(), and so only while nobody has them: `used` counts
 * them, and the one check in admit.c is all that is needed. What is not withheld is *granted*:
 *
 *     granted = sum over exports of (limit - withheld) <= total       whatever happens in between
 *
 * so the sum of what all exports have dirty cannot exceed the server's budget, and the writers' path
 * knows nothing of it.
 *
 * Ten times a second (balance) each export's grant is moved towards what is its due: among devices by
 * their recent completions, as seeds/003's floating proportions did, each with a floor, so that one that
 * begins can show how fast it is; among the exports of a device by Weight; Min_Bytes for each, and no more than
 * it has use for while others have. A grant grows at once, if there is anything to give, and shrinks by
 * half in SHRINK_S, so that nobody's writers stand still because of a newcomer. A part of the total
 * is given out between balances only, to those that come up against their grant.
 *
 * With the sum of all limits within the total nothing is ever withheld.
 */
#include <math.h>
#include <stdlib.h>

#include "dontcache/share.h"
#include "internal.h"

#define BALANCE_NS (100 * DC_NS_PER_MS)
#define HOT_NS (1 * DC_NS_PER_S) /* it came up against its grant so recently: it has use for more */
#define AGEING_S 3.0		 /* of completions, as in Linux (VM_COMPLETIONS_PERIOD_LEN) */
#define SHRINK_S 0.5
#define DEVICE_FLOOR 8	     /* a device's least part of the total: 1 / (8 * devices in use) */
#define DEVICE_MOST (7 / 8.) /* and its most, where there are others */
#define RESERVE 16	     /* part of the total that is given out on demand only */
#define FIRST_GRANT 1024     /* pages: a write of DC_MAX_WRITE may need two windows */

static uint64_t real_use(const struct dc_export *exp)
{
	uint64_t used = atomic_load(&exp->used), withheld = atomic_load(&exp->withheld);

	return used > withheld ? used - withheld : 0;
}

static uint64_t grant_of(const struct dc_export *exp)
{
	return atomic_load(&exp->limit) - atomic_load(&exp->withheld);
}

/* Gives the export back `pages` of what is withheld from it. pool->lock held. */
static void give(struct dc_pool *pool, struct dc_export *exp, uint64_t pages)
{
	atomic_fetch_sub(&exp->withheld, pages);
	pool->granted += pages;
	dc_budget_give(exp, pages);
}

/* Withholds up to `pages` more, as far as nobody has them. pool->lock held. */
static void withhold(struct dc_pool *pool, struct dc_export *exp, uint64_t pages)
{
	uint64_t limit = atomic_load(&exp->limit), used = atomic_load(&exp->used);

	pages = dc_min_u64(pages, limit > used ? limit - used : 0);
	if (pages == 0 || !dc_budget_take(exp, pages, limit))
		return;
	atomic_fetch_add(&exp->withheld, pages);
	pool->granted -= pages;
}

/* Without withholding anything once the limits fit. pool->lock held. */
static bool fits(const struct dc_pool *pool)
{
	return pool->limits <= pool->total;
}

static uint64_t room(const struct dc_pool *pool)
{
	return pool->total > pool->granted ? pool->total - pool->granted : 0;
}

bool dc_pool_borrow(struct dc_export *exp, uint64_t pages)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t n = 0;

	if (atomic_load(&exp->withheld) == 0)
		return false;
	pthread_mutex_lock(&pool->lock);
	exp->hot_until = dc_now(exp->eng) + HOT_NS;
	n = dc_min_u64(atomic_load(&exp->withheld), dc_max_u64(pages, FIRST_GRANT));
	n = dc_min_u64(n, room(pool));
	/* Beyond what it had coming: what is left must do for all that come. */
	if (grant_of(exp) > dc_max_u64(exp->target, FIRST_GRANT))
		n = 0;
	if (n > 0) {
		give(pool, exp, n);
		exp->target = dc_max_u64(exp->target, grant_of(exp));
		dc_levels_update(exp);
	}
	pthread_mutex_unlock(&pool->lock);
	return n > 0;
}

void dc_pool_join(struct dc_export *exp)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t limit = atomic_load(&exp->limit), grant;

	pthread_mutex_lock(&pool->lock);
	TAILQ_INSERT_TAIL(&pool->exports, exp, pool_link);
	pool->nr_exports++;
	pool->limits += limit;
	grant = fits(pool) ? limit : dc_max_u64(atomic_load(&exp->min_pages), FIRST_GRANT);
	grant = dc_min_u64(dc_min_u64(grant, limit), room(pool));
	exp->target = grant;
	atomic_store(&exp->withheld, limit - grant);
	atomic_fetch_add(&exp->used, limit - grant);
	pool->granted += grant;
	pool->next_balance = 0;
	dc_levels_update(exp);
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_leave(struct dc_export *exp)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t withheld;

	pthread_mutex_lock(&pool->lock);
	TAILQ_REMOVE(&pool->exports, exp, pool_link);
	pool->nr_exports--;
	pool->limits -= atomic_load(&exp->limit);
	pool->granted -= grant_of(exp);
	withheld = atomic_exchange(&exp->withheld, 0);
	dc_budget_give(exp, withheld);
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_limit(struct dc_export *exp, uint64_t limit)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t old, n;

	pthread_mutex_lock(&pool->lock);
	old = atomic_load(&exp->limit);
	pool->limits += limit - old;
	if (limit > old) {
		/* Withheld first: for a moment `used` may exceed the limit, and nobody is let in. */
		atomic_fetch_add(&exp->withheld, limit - old);
		atomic_fetch_add(&exp->used, limit - old);
		atomic_store(&exp->limit, limit);
		if (fits(pool)) {
			give(pool, exp, dc_min_u64(atomic_load(&exp->withheld), room(pool)));
			exp->target = limit;
		}
	} else {
		/* The grant shrinks by what is not withheld already, at once and for good: what is used beyond
		 * it will be given back before anything is let in. */
		n = dc_min_u64(old - limit, atomic_load(&exp->withheld));
		atomic_store(&exp->limit, limit);
		atomic_fetch_sub(&exp->withheld, n);
		dc_budget_give(exp, n);
		pool->granted -= old - limit - n;
	}
	exp->target = dc_min_u64(exp->target, limit);
	pool->next_balance = 0;
	dc_levels_update(exp);
	pthread_mutex_unlock(&pool->lock);
}

/* ---- what is whose due ---- */

/* One export's claim. pool->lock held. */
static void claim(const struct dc_pool *pool, struct dc_export *exp, double weights, uint64_t now,
		  struct dc_share *s)
{
	double limit = (double)atomic_load(&exp->limit), use = (double)real_use(exp);
	double weight = (double)atomic_load(&exp->weight);

	if (atomic_load(&exp->contended) != 0 || use > (double)grant_of(exp) / 2)
		exp->hot_until = now + HOT_NS;
	if (atomic_load(&exp->strict))
		limit = fmin(limit, fmax((double)atomic_load(&exp->min_pages),
					 (double)pool->total * weight / weights));
	s->weight = weight;
	s->min = fmin((double)atomic_load(&exp->min_pages), limit);
	/* Twice what it uses: then it has room to show that it needs more. */
	s->max = exp->hot_until > now ? limit : fmin(fmax(2 * use, s->min), limit);
}

/* A device's part: its recent completions, a floor, and what its exports have use for. */
static void device_claim(const struct dc_pool *pool, struct dc_pool_device *d, unsigned int hot)
{
	double least = (double)pool->total / (DEVICE_FLOOR * (hot ? hot : 1));
	double most = pool->nr_devices > 1 ? (double)pool->total * DEVICE_MOST :
					     (double)pool->total;

	d->share.weight = d->completions + 1;
	d->share.max = fmax(fmin(d->want, most), d->min);
	d->share.min = fmin(fmax(d->min, least), d->share.max);
}

static struct dc_pool_device *device_of(struct dc_pool *pool, struct dc_device *dev)
{
	struct dc_pool_device *d;

	for (uint32_t i = 0; i < pool->nr_devices; i++)
		if (pool->device[i].dev == dev)
			return &pool->device[i];
	pool->device =
		dc_realloc(pool->device, (pool->nr_devices + 1) * sizeof(*pool->device));
	d = &pool->device[pool->nr_devices];
	*d = (struct dc_pool_device){ .dev = dev };
	dev->pool_index = pool->nr_devices++;
	return d;
}

/* Each export's due, into exp->due_pages. pool->lock held. */
static void work_out(struct dc_pool *pool, double dt, uint64_t now)
{
	double weights = 0, rest, total = (double)(pool->total - pool->total / RESERVE);
	struct dc_share *devices, *exports;
	unsigned int hot = 0, i = 0;
	struct dc_export *exp;

	exports = dc_realloc(NULL, (pool->nr_exports + 1) * sizeof(*exports));
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
		weights += (double)atomic_load(&exp->weight);
	for (i = 0; i < pool->nr_devices; i++) {
		struct dc_pool_device *d = &pool->device[i];

		d->completions *= exp2(-dt / AGEING_S);
		d->min = d->want = d->limits = 0;
		d->first = d->nr = 0;
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
		device_of(pool, exp->dev)->nr++;
	for (i = 0; i + 1 < pool->nr_devices; i++)
		pool->device[i + 1].first = pool->device[i].first + pool->device[i].nr;
	for (i = 0; i < pool->nr_devices; i++)
		pool->device[i].nr = 0;
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		struct dc_pool_device *d = &pool->device[exp->dev->pool_index];
		struct dc_share *s = &exports[exp->share_index = d->first + d->nr++];

		claim(pool, exp, weights, now, s);
		d->completions += (double)atomic_exchange(&exp->completed, 0);
		d->min += s->min;
		d->want += s->max;
		d->limits += (double)atomic_load(&exp->limit);
	}
	devices = dc_realloc(NULL, (pool->nr_devices + 1) * sizeof(*devices));
	for (i = 0; i < pool->nr_devices; i++)
		hot += pool->device[i].want > pool->device[i].min;
	for (i = 0; i < pool->nr_devices; i++) {
		device_claim(pool, &pool->device[i], hot);
		devices[i] = pool->device[i].share;
	}
	rest = dc_share_out(devices, pool->nr_devices, total);
	/* What nobody asked for goes to whoever may have more: a burst then need not wait for a balance. */
	for (i = 0; i < pool->nr_devices; i++)
		devices[i].max = fmax(devices[i].max, pool->device[i].limits);
	dc_share_more(devices, pool->nr_devices, rest);
	for (i = 0; i < pool->nr_devices; i++) {
		struct dc_pool_device *d = &pool->device[i];

		d->rest = dc_share_out(&exports[d->first], d->nr, devices[i].out);
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		struct dc_share *s = &exports[exp->share_index];
		double limit = (double)atomic_load(&exp->limit);

		if (!atomic_load(&exp->strict))
			s->max = limit;
	}
	for (i = 0; i < pool->nr_devices; i++) {
		struct dc_pool_device *d = &pool->device[i];

		dc_share_more(&exports[d->first], d->nr, d->rest);
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
		exp->due_pages = (uint64_t)exports[exp->share_index].out;
	free(devices);
	free(exports);
}

static void move_target(struct dc_export *exp, double dt)
{
	uint64_t limit = atomic_load(&exp->limit);

	if (exp->due_pages >= exp->target)
		exp->target = exp->due_pages;
	else
		exp->target -= (uint64_t)((double)(exp->target - exp->due_pages) *
					  (1 - exp2(-dt / SHRINK_S)));
	exp->target = dc_min_u64(exp->target, limit);
}

void dc_pool_balance(struct dc_engine *eng, uint64_t now)
{
	struct dc_pool *pool = &eng->pool;
	struct dc_export *exp;
	double dt;

	if (now < atomic_load_explicit(&pool->next_balance, memory_order_relaxed))
		return;
	pthread_mutex_lock(&pool->lock);
	if (now < pool->next_balance) {
		pthread_mutex_unlock(&pool->lock);
		return;
	}
	dt = fmin((double)(now - pool->last_balance) / DC_NS_PER_S, 1);
	pool->last_balance = now;
	pool->next_balance = now + BALANCE_NS;
	if (fits(pool) && !pool->tight) {
		pthread_mutex_unlock(&pool->lock);
		return;
	}
	pool->tight = !fits(pool);
	if (pool->tight)
		work_out(pool, dt, now);
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		uint64_t grant = grant_of(exp);

		if (!pool->tight)
			exp->due_pages = atomic_load(&exp->limit);
		move_target(exp, dt);
		if (grant > exp->target) {
			if (pool->tight)
				dc_sweep(exp);
			withhold(pool, exp, grant - exp->target);
		}
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		uint64_t grant = grant_of(exp);

		if (grant < exp->target)
			give(pool, exp, dc_min_u64(exp->target - grant, room(pool)));
		dc_levels_update(exp);
	}
	pthread_mutex_unlock(&pool->lock);
}

void dc_engine_set_dirty_bytes(struct dc_engine *eng, uint64_t bytes)
{
	struct dc_pool *pool = &eng->pool;

	pthread_mutex_lock(&pool->lock);
	pool->total = bytes ? bytes >> DC_PAGE_SHIFT : UINT64_MAX >> DC_PAGE_SHIFT;
	pool->tight = true; /* what was withheld has to be given back */
	pool->next_balance = 0;
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_stats(struct dc_engine *eng, struct dc_pool_stats *st)
{
	struct dc_pool *pool = &eng->pool;

	pthread_mutex_lock(&pool->lock);
	st->dirty_bytes = pool->total >= UINT64_MAX >> DC_PAGE_SHIFT ? 0 : pool->total << DC_PAGE_SHIFT;
	st->granted = pool->granted << DC_PAGE_SHIFT;
	st->limits = pool->limits << DC_PAGE_SHIFT;
	pthread_mutex_unlock(&pool->lock);
}
