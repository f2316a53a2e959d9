/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The server's budget, shared by all exports.
 *
 * An export may use its own limit less what is *withheld* from it. Withheld pages are taken out of the
 * export's budget as a writer's are, by dc_budget_take(), and so only while nobody has them: `used` counts
 * them, and the one check in admit.c is all that is needed. What is not withheld is *granted*:
 *
 *     granted = sum over exports of (limit - withheld) + overdue <= total
 *
 * so the sum of what all exports have dirty does not exceed the server's budget, and the writers' path
 * knows nothing of it. Overdue is what an export has beyond a limit that was lowered, or still had under way when
 * it ended. Only lowering the total itself takes as long as the devices need for the difference.
 *
 * Ten times a second (balance) each export's grant is moved towards what is its due: among devices by
 * how fast they are (recent completions, as in seeds/003's floating proportions, or the measured
 * bandwidth), each with a floor, so that one that begins can show how fast it is; among the exports of a device by Weight; Min_Bytes for each, and no more than
 * it has use for while others have. A grant grows at once, if there is anything to give, and shrinks by
 * half in SHRINK_S, so that nobody's writers stand still because of a newcomer. A part of the total
 * is lent between balances, a write's pages at a time, to exports whose part is too small for one: that is
 * how newcomers begin, and how all live when the total divided by their number is less than a write. It goes
 * back as soon as those pages are clean.
 *
 * With the sum of all limits within the total nothing is ever withheld, except from Strict_Limit exports.
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
/* Pages of an export that lives on what is lent, unless one write needs more. */
#define LENT_MOST 512
#define LEFT_NS (35 * DC_NS_PER_S) /* the kernel writes what is 30 s old, and looks every 5 s */
/* Pages: a smaller part is of no use to its owner. */
#define LEAST_DUE (DC_MAX_WRITE >> DC_PAGE_SHIFT)
/* How much faster than it completes a device that is short of pages may count. */
#define FASTER_MOST 8

static uint64_t real_use(const struct dc_export *exp)
{
	uint64_t used = atomic_load(&exp->used), withheld = atomic_load(&exp->withheld);

	return used > withheld ? used - withheld : 0;
}

static uint64_t grant_of(const struct dc_export *exp)
{
	return atomic_load(&exp->limit) - atomic_load(&exp->withheld);
}

static bool unlimited(const struct dc_pool *pool)
{
	return pool->total >= UINT64_MAX >> DC_PAGE_SHIFT;
}

/* May everybody have its limit? pool->lock held. */
static bool fits(const struct dc_pool *pool)
{
	return pool->limits <= pool->total && (pool->nr_strict == 0 || unlimited(pool));
}

static uint64_t room(const struct dc_pool *pool)
{
	return pool->total > pool->granted ? pool->total - pool->granted : 0;
}

/* Of the total: a device's most. */
static double most(const struct dc_pool *pool)
{
	return (double)pool->total * (pool->nr_devices > 1 ? DEVICE_MOST : 1);
}

/* Pages that may be granted to this one more: while there are others its device gets no more than DEVICE_MOST,
 * and what the others need for their floors is kept. Dues obey that by themselves, but dues move, and pages that a
 * dead device's exports hold do not. */
static uint64_t room_for(const struct dc_pool *pool, const struct dc_export *exp)
{
	uint64_t free = room(pool), floor, kept = 0, ceiling = (uint64_t)most(pool), mine = 0;

	if (fits(pool) || pool->nr_devices < 2)
		return free;
	floor = pool->total / (DEVICE_FLOOR * pool->nr_devices);
	for (uint32_t i = 0; i < pool->nr_devices; i++) {
		const struct dc_pool_device *d = &pool->device[i];

		if (d->dev == exp->dev)
			mine = d->granted;
		else if (d->exports > 0 && d->granted < floor)
			kept += floor - d->granted;
	}
	free = free > kept ? free - kept : 0;
	return dc_min_u64(free, ceiling > mine ? ceiling - mine : 0);
}

static struct dc_pool_device *device_of(struct dc_pool *pool, struct dc_device *dev)
{
	struct dc_pool_device *d;

	for (uint32_t i = 0; i < pool->nr_devices; i++)
		if (pool->device[i].dev == dev)
			return &pool->device[i];
	pool->device = dc_realloc(pool->device, (pool->nr_devices + 1) * sizeof(*pool->device));
	d = &pool->device[pool->nr_devices];
	*d = (struct dc_pool_device){ .dev = dev };
	dev->pool_index = pool->nr_devices++;
	return d;
}

/* Every change of what is granted. Unsigned, so that it may be less. */
static void granted_add(struct dc_pool *pool, struct dc_export *exp, uint64_t pages)
{
	pool->granted += pages;
	pool->device[exp->dev->pool_index].granted += pages;
}

/* What the export has beyond its grant is now `pages`. pool->lock held. */
static void set_overdue(struct dc_pool *pool, struct dc_export *exp, uint64_t pages)
{
	granted_add(pool, exp, pages - exp->overdue);
	exp->overdue = pages;
}

/* Gives the export back `pages` of what is withheld from it. pool->lock held. */
static void give(struct dc_pool *pool, struct dc_export *exp, uint64_t pages)
{
	atomic_fetch_sub(&exp->withheld, pages);
	granted_add(pool, exp, pages);
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
	granted_add(pool, exp, -pages);
}

static void stop_borrowing(struct dc_pool *pool, struct dc_export *exp)
{
	if (exp->borrowing)
		TAILQ_REMOVE(&pool->borrowers, exp, borrow_link);
	exp->borrowing = false;
}

static bool others_wait(const struct dc_pool *pool, const struct dc_export *exp)
{
	return !TAILQ_EMPTY(&pool->borrowers) && TAILQ_FIRST(&pool->borrowers) != exp;
}

/* Whose turn it is now: its flusher looks at it. pool->lock held. */
static void call_next(struct dc_pool *pool)
{
	struct dc_export *next = TAILQ_FIRST(&pool->borrowers);

	if (!next || room(pool) == 0)
		return;
	atomic_store(&next->due, 0);
	dc_device_wake(next->dev);
}

bool dc_pool_borrow(struct dc_export *exp, uint64_t pages)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t grant, used, want;
	bool ok = false;

	if (atomic_load(&exp->withheld) == 0)
		return false;
	pthread_mutex_lock(&pool->lock);
	exp->hot_until = dc_now(exp->eng) + HOT_NS;
	grant = grant_of(exp);
	used = real_use(exp);
	want = used + pages > grant ? used + pages - grant : 0;
	if (want == 0 && (grant <= exp->due_pages || !others_wait(pool, exp))) {
		ok = true;
	} else if (want > atomic_load(&exp->withheld) ||
		   grant + want > dc_max_u64(exp->due_pages, dc_max_u64(pages, LENT_MOST))) {
		/* More than is due and than the least that is of use: what is left must do for all. */
		ok = false;
	} else if (want > room_for(pool, exp) || others_wait(pool, exp)) {
		/* One after the other, or those that have something would have it again and again. */
		if (!exp->borrowing)
			TAILQ_INSERT_TAIL(&pool->borrowers, exp, borrow_link);
		exp->borrowing = true;
		pthread_mutex_unlock(&pool->lock);
		return false;
	} else {
		give(pool, exp, want);
		exp->borrowed = true;
		dc_levels_update(exp);
		ok = true;
	}
	stop_borrowing(pool, exp);
	call_next(pool);
	pthread_mutex_unlock(&pool->lock);
	return ok;
}

void dc_pool_need_not(struct dc_export *exp)
{
	struct dc_pool *pool = &exp->eng->pool;

	pthread_mutex_lock(&pool->lock);
	stop_borrowing(pool, exp);
	call_next(pool);
	pthread_mutex_unlock(&pool->lock);
}

/* Unused pages of one that has more than its due. Of what becomes clean an eighth stays for its writers: see
 * dc_pace_linear(). */
static uint64_t spare(const struct dc_export *exp)
{
	uint64_t grant = grant_of(exp), used = real_use(exp),
		 unused = grant > used ? grant - used : 0;

	return exp->target > 0 ? unused - unused / 8 : unused;
}

/* What it borrowed goes back as its pages become clean, to whoever comes first. */
void dc_pool_repay(struct dc_export *exp)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t grant;

	pthread_mutex_lock(&pool->lock);
	grant = grant_of(exp);
	if (grant > exp->target)
		withhold(pool, exp, dc_min_u64(spare(exp), grant - exp->target));
	if (grant_of(exp) <= exp->target)
		exp->borrowed = false;
	dc_levels_update(exp);
	call_next(pool);
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_join(struct dc_export *exp)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t limit = atomic_load(&exp->limit), grant;

	pthread_mutex_lock(&pool->lock);
	TAILQ_INSERT_TAIL(&pool->exports, exp, pool_link);
	pool->nr_exports++;
	pool->limits += limit;
	grant = fits(pool) ? limit : dc_max_u64(atomic_load(&exp->min_pages), LEAST_DUE);
	device_of(pool, exp->dev)->exports++;
	grant = dc_min_u64(dc_min_u64(grant, limit), room_for(pool, exp));
	exp->target = exp->due_pages = grant;
	atomic_store(&exp->withheld, limit - grant);
	atomic_fetch_add(&exp->used, limit - grant);
	granted_add(pool, exp, grant);
	pool->next_balance = 0;
	dc_levels_update(exp);
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_leave(struct dc_export *exp, uint64_t left)
{
	struct dc_pool *pool = &exp->eng->pool;
	uint64_t withheld;

	pthread_mutex_lock(&pool->lock);
	TAILQ_REMOVE(&pool->exports, exp, pool_link);
	pool->nr_exports--;
	pool->limits -= atomic_load(&exp->limit);
	pool->nr_strict -= exp->counted_strict;
	/* What is still under writeback is its own until it is gone: dc_pool_gone(). */
	stop_borrowing(pool, exp);
	dc_sweep(exp);
	set_overdue(pool, exp, real_use(exp));
	granted_add(pool, exp, -grant_of(exp));
	pool->device[exp->dev->pool_index].exports--;
	/* Nobody counts its dirty pages any more, but the kernel has them. */
	if (left > 0) {
		pool->left += left;
		pool->granted += left;
		pool->left_until = dc_now(exp->eng) + LEFT_NS;
	}
	withheld = atomic_exchange(&exp->withheld, 0);
	dc_budget_give(exp, withheld);
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_gone(struct dc_export *exp)
{
	struct dc_pool *pool = &exp->eng->pool;

	pthread_mutex_lock(&pool->lock);
	set_overdue(pool, exp, 0);
	pthread_mutex_unlock(&pool->lock);
}

/* Pages that the export uses beyond its limit, which was lowered: they count until they are written.
 * pool->lock held. */
static void count_overdue(struct dc_pool *pool, struct dc_export *exp)
{
	uint64_t grant = grant_of(exp), used = real_use(exp);

	set_overdue(pool, exp, used > grant ? used - grant : 0);
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
		/* The grant shrinks by what is not withheld already; what is used beyond it is overdue, and
		 * nothing is let in before that is written. */
		n = dc_min_u64(old - limit, atomic_load(&exp->withheld));
		atomic_store(&exp->limit, limit);
		atomic_fetch_sub(&exp->withheld, n);
		dc_budget_give(exp, n);
		granted_add(pool, exp, -(old - limit - n));
		count_overdue(pool, exp);
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
	exp->most = limit;
	s->weight = weight;
	s->min = fmin((double)atomic_load(&exp->min_pages), limit);
	/* Twice what it uses: then it has room to show that it needs more. */
	s->max = exp->hot_until > now ? limit : fmin(fmax(2 * use, s->min), limit);
}

/* A device's part: its recent completions, a floor, and what its exports have use for. */
static void device_claim(const struct dc_pool *pool, struct dc_pool_device *d, unsigned int hot)
{
	double least = (double)pool->total / (DEVICE_FLOOR * (hot ? hot : 1));

	/* What completes is little where little was granted: how fast it is while it is busy counts, too. Of one
	 * that died nothing is left after a few seconds. */
	d->share.weight = d->completions * M_LN2 / AGEING_S;
	d->share.weight =
		1 + fmin(FASTER_MOST * d->share.weight,
			 fmax(d->share.weight,
			      (double)(atomic_load(&d->dev->bandwidth_now) >> DC_PAGE_SHIFT)));
	d->share.max = fmax(fmin(d->want, most(pool)), d->min);
	d->share.min = fmin(fmax(d->min, least), d->share.max);
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
		devices[i].max = fmax(devices[i].max, fmin(pool->device[i].limits, most(pool)));
	dc_share_more(devices, pool->nr_devices, rest);
	for (i = 0; i < pool->nr_devices; i++) {
		struct dc_pool_device *d = &pool->device[i];

		d->rest = dc_share_out(&exports[d->first], d->nr, devices[i].out);
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		struct dc_share *s = &exports[exp->share_index];

		s->max = fmax(s->max, exp->most);
	}
	for (i = 0; i < pool->nr_devices; i++) {
		struct dc_pool_device *d = &pool->device[i];

		dc_share_more(&exports[d->first], d->nr, d->rest);
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		exp->due_pages = (uint64_t)exports[exp->share_index].out;
		if (exp->due_pages < LEAST_DUE)
			exp->due_pages = 0;
	}
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
	bool over;
	double dt;

	if (now < atomic_load_explicit(&pool->next_balance, memory_order_relaxed))
		return;
	pthread_mutex_lock(&pool->lock);
	if (now < pool->next_balance) {
		pthread_mutex_unlock(&pool->lock);
		return;
	}
	/* Flushers come with clocks that they read at different moments. */
	dt = now > pool->last_balance ? fmin((double)(now - pool->last_balance) / DC_NS_PER_S, 1) :
					0;
	pool->last_balance = dc_max_u64(now, pool->last_balance);
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
		count_overdue(pool, exp);
		/* Nobody waits there any more. */
		if (exp->borrowing && atomic_load(&exp->contended) == 0)
			stop_borrowing(pool, exp);
	}
	if (pool->left > 0 && now >= pool->left_until) {
		pool->granted -= pool->left;
		pool->left = 0;
	}
	/* Less than was granted: what nobody uses of it goes at once. */
	over = pool->granted > pool->total;
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		uint64_t grant = grant_of(exp);

		if (!pool->tight)
			exp->due_pages = atomic_load(&exp->limit);
		/* Nor does it pay to come down slowly to nothing. */
		move_target(exp, over || exp->due_pages == 0 ? 1e9 : dt);
		if (grant > exp->target) {
			if (pool->tight)
				dc_sweep(exp);
			withhold(pool, exp,
				 dc_min_u64(over ? UINT64_MAX : spare(exp), grant - exp->target));
			/* The rest as it becomes clean. */
			if (grant_of(exp) > exp->target)
				exp->borrowed = true;
		}
	}
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	{
		uint64_t grant = grant_of(exp);

		if (grant < exp->target)
			give(pool, exp, dc_min_u64(exp->target - grant, room_for(pool, exp)));
		dc_levels_update(exp);
	}
	call_next(pool);
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
	dc_pool_balance(eng, dc_now(eng));
}

void dc_pool_strict(struct dc_export *exp, bool strict)
{
	struct dc_pool *pool = &exp->eng->pool;

	pthread_mutex_lock(&pool->lock);
	atomic_store(&exp->strict, strict);
	pool->nr_strict += strict;
	pool->nr_strict -= exp->counted_strict;
	exp->counted_strict = strict;
	pool->tight = true;
	pool->next_balance = 0;
	pthread_mutex_unlock(&pool->lock);
}

void dc_pool_stats(struct dc_engine *eng, struct dc_pool_stats *st)
{
	struct dc_pool *pool = &eng->pool;
	struct dc_export *exp;

	pthread_mutex_lock(&pool->lock);
	st->dirty_bytes = unlimited(pool) ? 0 : pool->total << DC_PAGE_SHIFT;
	st->granted = pool->granted << DC_PAGE_SHIFT;
	st->limits = pool->limits << DC_PAGE_SHIFT;
	st->mins = 0;
	TAILQ_FOREACH(exp, &pool->exports, pool_link)
	st->mins += atomic_load(&exp->min_pages) << DC_PAGE_SHIFT;
	pthread_mutex_unlock(&pool->lock);
}
