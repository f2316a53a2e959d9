/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Admission: who may dirty how much, and who waits.
 *
 * The budget is one number per export, `used`, that grows only in budget_take() and never past the
 * limit. Writers do not touch it one by one: each CPU slot keeps a small stash of pages already
 * taken, so that the fast path is one compare-and-swap on a line of its own.
 *
 * As soon as one write is parked (`contended` != 0) the fast path closes: everybody queues, and
 * what is released goes to the queue, connection by connection in deficit round robin (Shreedhar
 * and Varghese, 1995), so that one with 256 writes waiting gets no more bytes than one with 2.
 *
 * No wake-up is lost: a parker raises `contended` and then looks at `used`; a releaser lowers
 * `used` and then looks at `contended`. All four are seq_cst, so at least one sees the other.
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

/* The only place where `used` grows. */
static bool budget_take(struct dc_export *exp, uint64_t pages)
{
	uint64_t used = atomic_load(&exp->used);

	do {
		uint64_t limit = atomic_load_explicit(&exp->limit, memory_order_relaxed);

		if (pages > limit || used > limit - pages)
			return false;
	} while (!atomic_compare_exchange_weak(&exp->used, &used, used + pages));
	return true;
}

static void budget_give(struct dc_export *exp, uint64_t pages)
{
	uint64_t before = atomic_fetch_sub(&exp->used, pages);

	dc_assert(before >= pages);
}

void dc_sweep(struct dc_export *exp)
{
	for (unsigned int i = 0; i < exp->nr_slots; i++) {
		if (atomic_load_explicit(&exp->slots[i].stash, memory_order_relaxed) == 0)
			continue;
		budget_give(exp, atomic_exchange(&exp->slots[i].stash, 0));
	}
}

static uint64_t stash_size(struct dc_export *exp)
{
	uint64_t limit = atomic_load_explicit(&exp->limit, memory_order_relaxed);
	uint64_t used = atomic_load_explicit(&exp->used, memory_order_relaxed);
	uint64_t bg = atomic_load_explicit(&exp->background, memory_order_relaxed);
	uint64_t room = limit > used ? limit - used : 0;

	/* A small part of the background level, or stashes alone would look like dirty data. */
	room = dc_min_u64(room, bg) / (8 * exp->nr_slots);
	return dc_min_u64(room, STASH_MAX);
}

bool dc_admit(struct dc_export *exp, uint64_t pages)
{
	struct dc_slot *slot;
	uint64_t have, extra;

	if (atomic_load_explicit(&exp->contended, memory_order_relaxed) != 0)
		return false;
	slot = dc_slot(exp);
	have = atomic_load_explicit(&slot->stash, memory_order_relaxed);
	while (have >= pages)
		if (atomic_compare_exchange_weak(&slot->stash, &have, have - pages))
			return true;
	extra = stash_size(exp);
	if (extra > 0 && budget_take(exp, pages + extra)) {
		atomic_fetch_add(&slot->stash, extra);
		/* Somebody may have parked, and swept, just before: nothing must stay in a
		 * stash while writes wait. */
		if (atomic_load(&exp->contended) != 0)
			dc_dispatch(exp);
		return true;
	}
	if (budget_take(exp, pages))
		return true;
	dc_sweep(exp);
	return budget_take(exp, pages);
}

bool dc_near_limit(const struct dc_export *exp)
{
	uint64_t limit = atomic_load_explicit(&exp->limit, memory_order_relaxed);

	return atomic_load_explicit(&exp->used, memory_order_relaxed) > limit - limit / 8;
}

void dc_release(struct dc_export *exp, uint64_t pages)
{
	if (pages == 0)
		return;
	budget_give(exp, pages);
	if (atomic_load(&exp->contended) != 0)
		dc_dispatch(exp);
}

void dc_unreserve(struct dc_export *exp, uint64_t pages)
{
	struct dc_slot *slot;

	if (pages == 0)
		return;
	slot = dc_slot(exp);
	/* Not into a stash while writes wait, or while the limit, just lowered, is exceeded. */
	if (atomic_load(&exp->contended) != 0 ||
	    atomic_load_explicit(&exp->used, memory_order_relaxed) >
		    atomic_load_explicit(&exp->limit, memory_order_relaxed) ||
	    atomic_load_explicit(&slot->stash, memory_order_relaxed) > STASH_MAX) {
		dc_release(exp, pages);
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
	p->last = &p->first;
	LIST_INSERT_HEAD(&exp->parker_hash[b], p, hash);
	TAILQ_INSERT_TAIL(&exp->parkers, p, rr);
	exp->nr_parkers++;
	return p;
}

static void parker_free(struct dc_export *exp, struct dc_parker *p)
{
	LIST_REMOVE(p, hash);
	TAILQ_REMOVE(&exp->parkers, p, rr);
	exp->nr_parkers--;
	if (p->held)
		exp->nr_held--;
	free(p);
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

static struct dc_waiter *pop(struct dc_export *exp, struct dc_parker *p)
{
	struct dc_waiter *w = p->first;

	p->first = w->next;
	if (!p->first)
		p->last = &p->first;
	p->bytes -= w->bytes;
	exp->parked_bytes -= w->bytes;
	if (p->held && p->bytes <= parker_share(exp) / 2) {
		p->held = false;
		exp->nr_held--;
		w->resume = true;
	}
	if (!p->first) {
		dc_assert(p->bytes == 0 && !p->held);
		parker_free(exp, p);
	}
	return w;
}

enum dc_parking dc_park(struct dc_export *exp, struct dc_waiter *w)
{
	enum dc_parking answer = DC_PARKED;
	struct dc_parker *p;

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
	if (TAILQ_EMPTY(&exp->parkers)) {
		dc_sweep(exp);
		if (budget_take(exp, w->pages)) {
			atomic_fetch_sub(&exp->contended, 1);
			pthread_mutex_unlock(&exp->lock);
			return DC_ADMITTED;
		}
	}
	if (exp->parked_bytes > 4 * atomic_load(&exp->parked_cap)) {
		atomic_fetch_sub(&exp->contended, 1);
		pthread_mutex_unlock(&exp->lock);
		dc_count(exp, DC_CTR_REFUSED, 1);
		return DC_REFUSED;
	}
	p = parker_of(exp, w->connection);
	*p->last = w;
	p->last = &w->next;
	p->bytes += w->bytes;
	exp->parked_bytes += w->bytes;
	if (!p->held && (p->bytes >= parker_share(exp) ||
			 exp->parked_bytes >= atomic_load(&exp->parked_cap) / 4 * 3)) {
		p->held = true;
		exp->nr_held++;
		answer = DC_PARKED_HOLD;
	}
	pthread_mutex_unlock(&exp->lock);
	/* From here on *w may be gone. */
	dc_count(exp, DC_CTR_PARKED, 1);
	if (answer == DC_PARKED_HOLD)
		dc_count(exp, DC_CTR_HELD, 1);
	dc_kick(exp);
	return answer;
}

void dc_dispatch(struct dc_export *exp)
{
	struct dc_waiter *run = NULL, **tail = &run;
	struct dc_parker *p;
	uint64_t now = dc_now(exp->eng);
	bool swept = false;

	pthread_mutex_lock(&exp->lock);
	while ((p = TAILQ_FIRST(&exp->parkers))) {
		struct dc_waiter *w = p->first;

		if (atomic_load(&exp->draining)) {
			w = pop(exp, p);
			w->status = -ECANCELED;
		} else if (p->deficit < w->bytes) {
			/* Its turn is over; with the quantum at least one write long each
			 * visit ends in progress. */
			p->deficit += DC_MAX_WRITE;
			TAILQ_REMOVE(&exp->parkers, p, rr);
			TAILQ_INSERT_TAIL(&exp->parkers, p, rr);
			continue;
		} else if (!budget_take(exp, w->pages)) {
			if (swept)
				break;
			dc_sweep(exp);
			swept = true;
			continue;
		} else {
			p->deficit -= w->bytes;
			w = pop(exp, p);
			w->status = 0;
		}
		atomic_fetch_sub(&exp->contended, 1);
		dc_count(exp, DC_CTR_PARKED_NS, now > w->since_ns ? now - w->since_ns : 0);
		w->next = NULL;
		*tail = w;
		tail = &w->next;
	}
	pthread_mutex_unlock(&exp->lock);
	if (run)
		dc_executor_run(exp->dev->exec, run);
}
