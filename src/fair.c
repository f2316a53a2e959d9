/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Start-time fair queueing: see fair.h. Everything is O(log clients). */
#include "fair.h"

#include <stdlib.h>
#include <string.h>

#include "dontcache/engine.h"
#include "util.h"

#define BUCKETS_MIN 64
#define LAG (2 * DC_MAX_WRITE)

void dc_fair_init(struct dc_fair *f)
{
	memset(f, 0, sizeof(*f));
	TAILQ_INIT(&f->idle);
}

static struct dc_flow_list *bucket_of(const struct dc_fair *f, uint64_t client)
{
	return &f->bucket[(client * 0x9e3779b97f4a7c15ULL >> 32) % f->nr_buckets];
}

static void flow_free(struct dc_fair *f, struct dc_flow *flow)
{
	LIST_REMOVE(flow, hash);
	TAILQ_REMOVE(&f->idle, flow, idle);
	f->nr_flows--;
	free(flow);
}

/* Those whose past does not matter any more: they would begin with the greatest lag anyhow. */
static void forget_idle(struct dc_fair *f, uint64_t now)
{
	struct dc_flow *flow;

	/* Two at a time keep up with any number: each write makes at most one idle. The order is that
	 * of becoming idle, nearly that of the end tags. */
	for (int i = 0; i < 2 && (flow = TAILQ_FIRST(&f->idle)); i++) {
		if (flow->finish + LAG <= now) {
			flow_free(f, flow);
			continue;
		}
		TAILQ_REMOVE(&f->idle, flow, idle);
		TAILQ_INSERT_TAIL(&f->idle, flow, idle);
	}
}

void dc_fair_free(struct dc_fair *f)
{
	struct dc_flow *flow;

	dc_assert(f->nr == 0);
	while ((flow = TAILQ_FIRST(&f->idle)))
		flow_free(f, flow);
	dc_assert(f->nr_flows == 0);
	free(f->heap);
	free(f->bucket);
}

/* ---- the heap ---- */

static int before(const struct dc_flow *a, const struct dc_flow *b)
{
	if (a->first->start != b->first->start)
		return a->first->start < b->first->start;
	return a->first->order < b->first->order;
}

static void put_at(struct dc_fair *f, struct dc_flow *flow, uint32_t i)
{
	f->heap[i] = flow;
	flow->heap_index = i;
}

static void sift_up(struct dc_fair *f, struct dc_flow *flow, uint32_t i)
{
	for (; i > 0 && before(flow, f->heap[(i - 1) / 2]); i = (i - 1) / 2)
		put_at(f, f->heap[(i - 1) / 2], i);
	put_at(f, flow, i);
}

static void sift_down(struct dc_fair *f, struct dc_flow *flow, uint32_t i)
{
	for (;;) {
		uint32_t down = 2 * i + 1;

		if (down >= f->nr)
			break;
		if (down + 1 < f->nr && before(f->heap[down + 1], f->heap[down]))
			down++;
		if (!before(f->heap[down], flow))
			break;
		put_at(f, f->heap[down], i);
		i = down;
	}
	put_at(f, flow, i);
}

/* ---- flows ---- */

static void grow_table(struct dc_fair *f)
{
	uint32_t nr = f->nr_buckets ? 4 * f->nr_buckets : BUCKETS_MIN;
	struct dc_flow_list *old = f->bucket;
	uint32_t nr_old = f->nr_buckets;
	struct dc_flow *flow;

	f->bucket = dc_zalloc(nr * sizeof(*f->bucket));
	f->nr_buckets = nr;
	for (uint32_t i = 0; i < nr_old; i++) {
		while ((flow = LIST_FIRST(&old[i]))) {
			LIST_REMOVE(flow, hash);
			LIST_INSERT_HEAD(bucket_of(f, flow->client), flow, hash);
		}
	}
	free(old);
}

static struct dc_flow *find(const struct dc_fair *f, uint64_t client)
{
	struct dc_flow *flow;

	if (f->nr_buckets == 0)
		return NULL;
	LIST_FOREACH(flow, bucket_of(f, client), hash)
	{
		if (flow->client == client)
			return flow;
	}
	return NULL;
}

static struct dc_flow *flow_of(struct dc_fair *f, uint64_t client)
{
	struct dc_flow *flow = find(f, client);

	if (flow)
		return flow;
	if (f->nr_flows >= f->nr_buckets)
		grow_table(f);
	flow = dc_zalloc(sizeof(*flow));
	flow->client = client;
	flow->finish = f->now; /* whoever is new has no past to make up for */
	flow->last = &flow->first;
	LIST_INSERT_HEAD(bucket_of(f, client), flow, hash);
	TAILQ_INSERT_TAIL(&f->idle, flow, idle);
	f->nr_flows++;
	return flow;
}

static uint64_t start_of(const struct dc_fair *f, const struct dc_flow *flow)
{
	return dc_max_u64(f->now > LAG ? f->now - LAG : 0, flow->finish);
}

bool dc_fair_behind(const struct dc_fair *f, uint64_t client)
{
	const struct dc_flow *flow = find(f, client);

	return !flow || (!flow->first && flow->finish <= f->now);
}

void dc_fair_charge(struct dc_fair *f, uint64_t client, uint64_t bytes)
{
	struct dc_flow *flow = flow_of(f, client);

	flow->finish = start_of(f, flow) + bytes;
}

void dc_fair_push(struct dc_fair *f, struct dc_waiter *w)
{
	struct dc_flow *flow = flow_of(f, w->client);

	w->next = NULL;
	w->order = f->order++;
	w->start = start_of(f, flow);
	flow->finish = w->start + w->bytes;
	*flow->last = w;
	flow->last = &w->next;
	if (flow->first != w)
		return;
	TAILQ_REMOVE(&f->idle, flow, idle);
	if (f->nr == f->cap) {
		f->cap = f->cap ? 2 * f->cap : 16;
		f->heap = dc_realloc(f->heap, f->cap * sizeof(struct dc_flow *));
	}
	sift_up(f, flow, f->nr++);
}

struct dc_waiter *dc_fair_first(const struct dc_fair *f)
{
	return f->nr ? f->heap[0]->first : NULL;
}

struct dc_waiter *dc_fair_pop(struct dc_fair *f)
{
	struct dc_flow *flow = f->heap[0], *last;
	struct dc_waiter *w = flow->first;

	f->now = dc_max_u64(f->now, w->start);
	flow->first = w->next;
	w->next = NULL;
	if (flow->first) {
		sift_down(f, flow, 0);
		forget_idle(f, f->now);
		return w;
	}
	flow->last = &flow->first;
	TAILQ_INSERT_TAIL(&f->idle, flow, idle);
	last = f->heap[--f->nr];
	if (last != flow)
		sift_down(f, last, 0);
	forget_idle(f, f->now);
	return w;
}
