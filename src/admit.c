/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Admission: who may dirty how much, when, and who waits.
 *
 * The budget is one number per export, `used`, that grows only in dc_budget_take() and never past the
 * limit. Writers do not touch it one by one: each CPU slot keeps a small stash of pages already
 * taken, so that the fast path is one compare-and-swap on a line of its own.
 *
 * The fast path ends at `freerun`. From there to the limit writes are let in at the rate of the pacing
 * law (dontcache/pacing.h): each costs credit, credit grows with time. A write that finds credit, and
 * nobody waiting, goes on at once; another is parked, and the flusher lets it in when there is credit
 * again, client by client in fair order (fair.h).
 *
 * As soon as one write is parked (`contended` != 0) the fast path closes: everybody queues.
 *
 * No wake-up is lost. Who waits for pages sets `short_of` and then tries to take them; who gives pages
 * back lowers `used` and then looks at `short_of`: both seq_cst, so at least one sees the other. Who
 * waits for credit is looked at again when it is due (dc_pace_due()).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "internal.h"

/* Pages that a refill takes beyond what is asked: 1 MiB, less when the budget is small. */
#define STASH_MAX 256

struct dc_slot *dc_slot(struct dc_export *exp)
{
	int cpu = sched_getcpu();

	return &exp->slots[(unsigned int)(cpu < 0 ? 0 : cpu) & (exp->nr_slots - 1)];
}

uint64_t dc_dirty_pages(struct dc_export *exp)
{
	int64_t sum = 0;

	for (unsigned int i = 0; i < exp->nr_slots; i++)
		sum += atomic_load(&exp->slots[i].dirty);
	/* Slots are read one after the other, so the sum may miss an increment and see the
	 * decrement that followed it elsewhere. */
	return sum > 0 ? (uint64_t)sum : 0;
}

bool dc_budget_take(struct dc_export *exp, uint64_t pages, uint64_t cap)
{
	uint64_t used = atomic_load(&exp->used);

	do {
		uint64_t limit = atomic_load_explicit(&exp->limit, memory_order_relaxed);

		if (cap < limit)
			limit = cap;
		if (pages > limit || used > limit - pages)
			return false;
	} while (!atomic_compare_exchange_weak(&exp->used, &used, used + pages));
	return true;
}

void dc_budget_give(struct dc_export *exp, uint64_t pages)
{
	uint64_t before = atomic_fetch_sub(&exp->used, pages);

	dc_assert(before >= pages);
}

void dc_sweep(struct dc_export *exp)
{
	for (unsigned int i = 0; i < exp->nr_slots; i++) {
		if (atomic_load_explicit(&exp->slots[i].stash, memory_order_relaxed) == 0)
			continue;
		dc_budget_give(exp, atomic_exchange(&exp->slots[i].stash, 0));
	}
}

/* The same, with what the slots keep ready if need be. */
static bool budget_take_all(struct dc_export *exp, uint64_t pages, uint64_t cap)
{
	if (dc_budget_take(exp, pages, cap))
		return true;
	dc_sweep(exp);
	return dc_budget_take(exp, pages, cap);
}

/* ---- levels ---- */

void dc_levels_update(struct dc_export *exp)
{
	uint64_t limit = atomic_load(&exp->limit), withheld = atomic_load(&exp->withheld);
	uint64_t grant = limit > withheld ? limit - withheld : 0;
	uint64_t part = dc_min_u64(grant, atomic_load(&exp->target)), bg, freerun;

	/* The background level keeps its place in what may be used. */
	bg = (uint64_t)((double)atomic_load(&exp->background_wanted) * (double)part /
			(double)limit);
	freerun = exp->eng->opt.law ? dc_pace_freerun(bg, part) : part;
	atomic_store(&exp->background, bg);
	atomic_store(&exp->usable, part);
	atomic_store(&exp->setpoint, exp->eng->opt.law ? dc_pace_setpoint(bg, part) : part);
	atomic_store(&exp->freerun, freerun);
	/* What is withheld counts as used. */
	atomic_store(&exp->fast_cap, freerun + withheld);
	/* Above its due the law keeps an export that has more back; without a law this does. */
	atomic_store(&exp->hard_cap, exp->eng->opt.law ? UINT64_MAX : part + withheld);
	atomic_store(&exp->near, dc_min_u64(freerun, part - part / 8) + withheld);
}

/* ---- pacing; under exp->lock ---- */

#define BURST_S 0.01 /* credit is not kept for longer: what it lets in at once comes in at once */
#define OVERDRAFT_S 0.02
#define LAPSE_S 0.1		       /* nor does it grow for longer while nobody looks */
#define LOOK_MIN_NS (1 * DC_NS_PER_MS) /* how often waiters are looked at, at most */
#define LOOK_MAX_NS (20 * DC_NS_PER_MS)
#define LOOK_COST_NS 20000 /* with many exports waiting each is looked at less often */

/* Credit for the time since it was looked at last. */
static void refill(struct dc_export *exp, uint64_t now)
{
	struct dc_pace *pace = &exp->pace;
	struct dc_pace_in in = {
		.freerun = (double)atomic_load(&exp->freerun),
		.setpoint = (double)atomic_load(&exp->setpoint),
	};
	uint64_t withheld = atomic_load(&exp->withheld), limit = atomic_load(&exp->limit);
	double dt;

	if (now <= pace->since)
		return;
	dt = (double)(now - pace->since) / DC_NS_PER_S;
	in.dirty = (double)(dc_dirty_pages(exp) + atomic_load(&exp->writeback));
	/* Hard is what is granted, even while less is its due. */
	in.limit = limit > withheld ? (double)(limit - withheld) : 0;
	in.completed = dc_rate_now(&exp->done, now);
	pace->rate = exp->eng->opt.law(&in);
	pace->since = now;
	pace->credit += pace->rate * (dt < LAPSE_S ? dt : LAPSE_S);
	if (pace->credit > pace->rate * BURST_S)
		pace->credit = pace->rate * BURST_S;
}

/* Takes what a write needs, if there are pages and credit. `bytes` are what it costs of that: it may need
 * more pages than it will dirty. `behind`: its client had less than its share, and so may have what others will get
 * later. */
static bool take(struct dc_export *exp, uint64_t pages, uint64_t bytes, uint64_t now, bool behind)
{
	bool paced = exp->eng->opt.law != NULL;

	atomic_store(&exp->short_of, true);
	/* A part too small for one write: it was idle and others have what it did not use, or there are many.
	 * No law holds there; pages come as the server has them. */
	if (atomic_load(&exp->usable) < pages && atomic_load(&exp->withheld) > 0) {
		dc_sweep(exp);
		if (dc_pool_borrow(exp, pages) && dc_budget_take(exp, pages, UINT64_MAX))
			goto taken;
		return false;
	}
	if (atomic_load(&exp->borrowing))
		dc_pool_need_not(exp);
	if (paced) {
		/* Below freerun nobody needs credit. */
		if (dc_budget_take(exp, pages, atomic_load(&exp->fast_cap)))
			goto taken;
		refill(exp, now);
		if (exp->pace.credit <= (behind ? -exp->pace.rate * OVERDRAFT_S : 0)) {
			dc_sweep(exp);
			if (dc_budget_take(exp, pages, atomic_load(&exp->fast_cap)))
				goto taken;
			atomic_store(&exp->short_of, false);
			return false;
		}
	}
	if (!budget_take_all(exp, pages, atomic_load(&exp->hard_cap)))
		return false;
	if (paced)
		exp->pace.credit -= (double)bytes / DC_PAGE_SIZE;
taken:
	atomic_store(&exp->short_of, false);
	return true;
}

/* When the first of those that wait should be looked at again, ns. */
static uint64_t look_again(const struct dc_export *exp, uint64_t now)
{
	const struct dc_pace *pace = &exp->pace;
	uint64_t least = atomic_load(&exp->dev->nr_awaited) * LOOK_COST_NS, at;
	double wait;

	least = dc_min_u64(dc_max_u64(least, LOOK_MIN_NS), LOOK_MAX_NS);
	if (!exp->eng->opt.law || pace->credit > 0 || pace->rate <= 0)
		return now + LOOK_MAX_NS;
	wait = -pace->credit / pace->rate * DC_NS_PER_S;
	if (wait >= LOOK_MAX_NS)
		return now + LOOK_MAX_NS;
	at = now + dc_max_u64((uint64_t)wait, least);
	/* Many exports' moments fall together. */
	return (at + LOOK_MIN_NS - 1) / LOOK_MIN_NS * LOOK_MIN_NS;
}

static uint64_t stash_size(struct dc_export *exp)
{
	uint64_t limit = atomic_load_explicit(&exp->fast_cap, memory_order_relaxed);
	uint64_t used = atomic_load_explicit(&exp->used, memory_order_relaxed);
	uint64_t bg = atomic_load_explicit(&exp->background, memory_order_relaxed);
	uint64_t room = limit > used ? limit - used : 0;

	/* A small part of the background level, or stashes alone would look like dirty data. */
	room = dc_min_u64(room, bg) / (8 * exp->nr_slots);
	return dc_min_u64(room, STASH_MAX);
}

bool dc_admit(struct dc_export *exp, uint64_t pages)
{
	uint64_t have, extra, cap;
	struct dc_slot *slot;
	bool ok = false;

	if (atomic_load_explicit(&exp->contended, memory_order_relaxed) != 0)
		return false;
	slot = dc_slot(exp);
	have = atomic_load_explicit(&slot->stash, memory_order_relaxed);
	while (have >= pages)
		if (atomic_compare_exchange_weak(&slot->stash, &have, have - pages))
			return true;
	extra = stash_size(exp);
	cap = atomic_load_explicit(&exp->fast_cap, memory_order_relaxed);
	if (extra > 0 && dc_budget_take(exp, pages + extra, cap)) {
		atomic_fetch_add(&slot->stash, extra);
		/* Somebody may have parked, and swept, just before: nothing must stay in a
		 * stash while writes wait. */
		if (atomic_load(&exp->contended) != 0)
			dc_dispatch(exp);
		return true;
	}
	if (dc_budget_take(exp, pages, cap))
		return true;
	pthread_mutex_lock(&exp->lock);
	if (!dc_fair_first(&exp->fair)) {
		ok = take(exp, pages, pages << DC_PAGE_SHIFT, dc_now(exp->eng), false);
		atomic_store(&exp->short_of, false); /* nobody waits: who asked may now park */
	}
	pthread_mutex_unlock(&exp->lock);
	return ok;
}

bool dc_admit_more(struct dc_export *exp, uint64_t pages)
{
	return budget_take_all(exp, pages, UINT64_MAX);
}

bool dc_near_limit(const struct dc_export *exp)
{
	return atomic_load_explicit(&exp->used, memory_order_relaxed) >
	       atomic_load_explicit(&exp->near, memory_order_relaxed);
}

void dc_release(struct dc_export *exp, uint64_t pages)
{
	if (pages == 0)
		return;
	dc_budget_give(exp, pages);
	if (atomic_load(&exp->borrowed))
		dc_pool_repay(exp);
	if (atomic_load(&exp->contended) != 0)
		dc_dispatch(exp);
}

void dc_unreserve(struct dc_export *exp, uint64_t pages)
{
	struct dc_slot *slot;

	if (pages == 0)
		return;
	slot = dc_slot(exp);
	/* Not into a stash while writes wait, or beyond where the fast path ends: the limit may just have
	 * been lowered. */
	if (atomic_load(&exp->contended) != 0 ||
	    atomic_load_explicit(&exp->used, memory_order_relaxed) >
		    atomic_load_explicit(&exp->fast_cap, memory_order_relaxed) ||
	    atomic_load_explicit(&slot->stash, memory_order_relaxed) > STASH_MAX) {
		dc_budget_give(exp, pages);
		/* Only those that wait for pages are helped: credit comes with time. */
		if (atomic_load(&exp->short_of))
			dc_dispatch(exp);
		return;
	}
	atomic_fetch_add(&slot->stash, pages);
	if (atomic_load(&exp->contended) != 0)
		dc_dispatch(exp);
}

/* ---- the queue; all under exp->lock ---- */

static struct dc_parker *parker_of(struct dc_export *exp, void *connection)
{
	unsigned int b = ((uintptr_t)connection >> 6) % DC_PARKER_BUCKETS;
	struct dc_parker *p;

	LIST_FOREACH(p, &exp->parker_hash[b], hash)
	{
		if (p->connection == connection)
			return p;
	}
	p = dc_zalloc(sizeof(*p));
	p->connection = connection;
	LIST_INSERT_HEAD(&exp->parker_hash[b], p, hash);
	exp->nr_parkers++;
	return p;
}

/*
 * What one connection may have parked before it is held back: an even part of half of Parked_Bytes,
 * and never more than a sixteenth of it, so that the first to come does not fill the cap before the
 * others are seen. The other half is for what still arrives: requests already on their way when
 * reading stops, and connections that are new. More would gain nothing: what is not parked waits in
 * the socket.
 */
static uint64_t parker_share(struct dc_export *exp)
{
	uint64_t cap = atomic_load(&exp->parked_cap);

	return dc_min_u64(cap / 16, cap / 2 / (exp->nr_parkers ? exp->nr_parkers : 1));
}

static struct dc_waiter *pop(struct dc_export *exp)
{
	struct dc_waiter *w = dc_fair_pop(&exp->fair);
	struct dc_parker *p = parker_of(exp, w->connection);

	p->bytes -= w->bytes;
	p->writes--;
	exp->parked_bytes -= w->bytes;
	if (p->held && p->bytes <= parker_share(exp) / 2) {
		p->held = false;
		exp->nr_held--;
		w->resume = true;
	}
	if (p->writes == 0) {
		dc_assert(p->bytes == 0 && !p->held);
		LIST_REMOVE(p, hash);
		exp->nr_parkers--;
		free(p);
	}
	atomic_fetch_sub(&exp->contended, 1);
	return w;
}

/* The flusher is to look at the export when its waiters are due. Nothing locked. */
static void await_due(struct dc_export *exp)
{
	struct dc_device *dev = exp->dev;

	if (atomic_exchange(&exp->awaiting, true))
		return;
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->to_await, exp, await_link);
	pthread_mutex_unlock(&dev->lock);
	dc_device_wake(dev);
}

enum dc_parking dc_park(struct dc_export *exp, struct dc_waiter *w)
{
	enum dc_parking answer = DC_PARKED;
	struct dc_parker *p;
	bool first, behind;

	dc_assert(exp->magic == DC_EXPORT_MAGIC);
	w->exp = exp;
	w->next = NULL;
	w->resume = false;
	w->since_ns = dc_now(exp->eng);
	pthread_mutex_lock(&exp->lock);
	if (atomic_load(&exp->draining)) {
		pthread_mutex_unlock(&exp->lock);
		return DC_REFUSED;
	}
	atomic_fetch_add(&exp->contended, 1);
	first = dc_fair_first(&exp->fair) == NULL;
	behind = !first && dc_fair_behind(&exp->fair, w->client);
	if ((first || behind) && take(exp, w->pages, w->bytes, w->since_ns, behind)) {
		if (behind)
			dc_fair_charge(&exp->fair, w->client, w->bytes);
		atomic_store(&exp->short_of, !first);
		atomic_fetch_sub(&exp->contended, 1);
		pthread_mutex_unlock(&exp->lock);
		return DC_ADMITTED;
	}
	if (exp->parked_bytes > 4 * atomic_load(&exp->parked_cap)) {
		atomic_fetch_sub(&exp->contended, 1);
		pthread_mutex_unlock(&exp->lock);
		dc_count(exp, DC_CTR_REFUSED, 1);
		return DC_REFUSED;
	}
	dc_fair_push(&exp->fair, w);
	p = parker_of(exp, w->connection);
	p->bytes += w->bytes;
	p->writes++;
	exp->parked_bytes += w->bytes;
	if (!p->held && (p->bytes >= parker_share(exp) ||
			 exp->parked_bytes >= atomic_load(&exp->parked_cap) / 4 * 3)) {
		p->held = true;
		exp->nr_held++;
		answer = DC_PARKED_HOLD;
	}
	/* Not for each that comes: who waits already is looked at when it is due. */
	if (first)
		atomic_store(&exp->due, look_again(exp, w->since_ns));
	pthread_mutex_unlock(&exp->lock);
	/* From here on *w may be gone. */
	dc_count(exp, DC_CTR_PARKED, 1);
	if (answer == DC_PARKED_HOLD)
		dc_count(exp, DC_CTR_HELD, 1);
	dc_kick(exp);
	await_due(exp);
	return answer;
}

void dc_dispatch(struct dc_export *exp)
{
	struct dc_waiter *run = NULL, **tail = &run, *w;
	uint64_t now = dc_now(exp->eng);

	pthread_mutex_lock(&exp->lock);
	while ((w = dc_fair_first(&exp->fair))) {
		if (atomic_load(&exp->draining)) {
			w = pop(exp);
			w->status = -ECANCELED;
		} else if (!take(exp, w->pages, w->bytes, now, false)) {
			break;
		} else {
			w = pop(exp);
			w->status = 0;
		}
		dc_count(exp, DC_CTR_PARKED_NS, now > w->since_ns ? now - w->since_ns : 0);
		*tail = w;
		tail = &w->next;
	}
	atomic_store(&exp->due, look_again(exp, now));
	pthread_mutex_unlock(&exp->lock);
	if (run)
		dc_executor_run(exp->dev->exec, run);
}

/* ---- the flusher's part ---- */

void dc_pace_due(struct dc_device *dev, uint64_t now)
{
	struct dc_await_list looked = TAILQ_HEAD_INITIALIZER(looked);
	struct dc_export *exp, *next;
	uint32_t nr = 0;

	pthread_mutex_lock(&dev->lock);
	TAILQ_CONCAT(&dev->awaited, &dev->to_await, await_link);
	pthread_mutex_unlock(&dev->lock);
	for (exp = TAILQ_FIRST(&dev->awaited); exp; exp = next) {
		next = TAILQ_NEXT(exp, await_link);
		nr++;
		if (atomic_load(&exp->contended) != 0 && now >= atomic_load(&exp->due)) {
			dc_dispatch(exp);
			/* Behind the others, or the same one would be lent pages each time. */
			TAILQ_REMOVE(&dev->awaited, exp, await_link);
			TAILQ_INSERT_TAIL(&looked, exp, await_link);
			continue;
		}
		if (atomic_load(&exp->contended) != 0)
			continue;
		/* Clear first, then look once more: who parks from here on announces it anew. */
		TAILQ_REMOVE(&dev->awaited, exp, await_link);
		atomic_store(&exp->awaiting, false);
		if (atomic_load(&exp->contended) != 0)
			await_due(exp);
	}
	/* One that has nothing waiting any more leaves in the next round. */
	TAILQ_CONCAT(&dev->awaited, &looked, await_link);
	atomic_store(&dev->nr_awaited, nr);
}

uint64_t dc_pace_timeout(const struct dc_device *dev, uint64_t now, uint64_t timeout)
{
	const struct dc_export *exp;

	TAILQ_FOREACH(exp, &dev->awaited, await_link)
	{
		uint64_t due = atomic_load(&exp->due);

		timeout = dc_min_u64(timeout, due > now ? due - now : 0);
	}
	return timeout;
}
